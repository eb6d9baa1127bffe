// Calls that newer architectures don't have (asm-generic/unistd.h), by the numbers of those that the C library makes
// instead.
#pragma once

#include <sys/syscall.h>

#ifndef SYS_epoll_wait
#define SYS_epoll_wait SYS_epoll_pwait
#endif
#ifndef SYS_poll
#define SYS_poll SYS_ppoll
#endif
#ifndef SYS_select
#define SYS_select SYS_pselect6
#endif
#ifndef SYS_pause
#define SYS_pause SYS_ppoll
#endif
