# SPDX-License-Identifier: LGPL-2.1-or-later
"""The btrfs ioctls and system calls that journalkeeper uses, one small module for each.

Each ioctl is a struct, a number and a function of the same name. The function takes a file descriptor and raises
OSError with the kernel's errno; the caller adds the file's name.
"""
