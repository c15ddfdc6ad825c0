# SPDX-License-Identifier: LGPL-2.1-or-later
"""The service: event loop, worker thread, jobs, inotify, log, sd_notify."""
