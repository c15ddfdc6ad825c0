# SPDX-License-Identifier: LGPL-2.1-or-later
"""Server and client of org.journalkeeper1 on the system bus.

Nothing outside of this package knows a D-Bus message. The contract is `contract.py`, from which an installation makes
the XML of the interfaces; what a caller may do is for configs/polkit and `callers.py`.
"""
