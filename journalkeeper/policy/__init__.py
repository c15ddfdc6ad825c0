# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is to be done to which file and why, or why not.

No path is touched, no clock read, no ioctl made below here. A Host goes
in, a Plan comes out, and the same Host always gives the same Plan.
"""
