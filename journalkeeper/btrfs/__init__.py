# SPDX-License-Identifier: LGPL-2.1-or-later
"""The btrfs hands: one small module for each thing that the kernel can tell or do.

The one rule: an ioctl is a struct, a number and one function named after it, which takes
a file descriptor and raises OSError as the kernel gave it; the caller knows the file's name.
"""
