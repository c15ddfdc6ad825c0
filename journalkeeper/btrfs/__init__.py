# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the kernel can tell or do about btrfs: one small module for each.

An ioctl is a struct, a number and one function named after it, which takes
a file descriptor and raises OSError as the kernel gave it; the caller knows the file's name.
"""
