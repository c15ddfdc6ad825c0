// SPDX-License-Identifier: LGPL-2.1-or-later
/* ptrace(2) for kernels as processes before 7: their buffer for a process's registers is shorter than the area of a
   processor with AMX, and the machine's kernel refuses to set a part. Read the whole area, lay their part over it, and
   set the whole. */
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PEEKTEXT = 1, PEEKUSER = 3, GETREGSET = 0x4204, SETREGSET = 0x4205, XSTATE = 0x202 };

long ptrace(int request, ...)
{
	static unsigned char area[1 << 16] __attribute__((aligned(64)));
	struct iovec whole = { area, sizeof area }, *part;
	long pid, address, word, done;
	void *data;
	va_list rest;

	va_start(rest, request);
	pid = va_arg(rest, int);
	address = va_arg(rest, long);
	data = part = va_arg(rest, void *);
	va_end(rest);
	if (request == SETREGSET && address == XSTATE &&
	    syscall(SYS_ptrace, GETREGSET, pid, address, &whole) == 0 && part->iov_len < whole.iov_len) {
		memcpy(area, part->iov_base, part->iov_len);
		data = &whole;
	}
	if (request < PEEKTEXT || request > PEEKUSER)
		return syscall(SYS_ptrace, (long)request, pid, address, data);
	done = syscall(SYS_ptrace, (long)request, pid, address, &word);
	if (done == 0)
		errno = 0;
	return done == 0 ? word : -1;
}
