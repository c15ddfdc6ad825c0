# SPDX-License-Identifier: LGPL-2.1-or-later
"""The door to D-Bus: org.journalkeeper1 on the system bus.

The one rule: nothing outside of this package, and of the command line as its client, knows
a message. The contract is configs/dbus/org.journalkeeper1.*.xml; what a caller may is for
configs/polkit and `polkit.py`.
"""
