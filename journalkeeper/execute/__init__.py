# SPDX-License-Identifier: LGPL-2.1-or-later
"""Changes files and directories: every action is checked again on the descriptor that is then worked on."""
