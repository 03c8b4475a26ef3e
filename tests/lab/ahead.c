/* Loaded before the C library's own: the time of day of a host whose clock is ahead. Clocks that
   only count go on as they are. (libfaketime is more than this, and breaks waits of Python's.)
   Without headers, so that any C compiler makes it. */
typedef struct { long sec, nsec; } timespec;
typedef struct { long sec, usec; } timeval;
extern long syscall(long number, ...);
enum { REALTIME = 0, REALTIME_COARSE = 5 };

int clock_gettime(int clock, timespec *now) {
    int failed = (int) syscall(CLOCK_GETTIME, (long) clock, now);
    if (!failed && (clock == REALTIME || clock == REALTIME_COARSE)) now->sec += AHEAD_S;
    return failed;
}

int gettimeofday(timeval *now, void *zone) {
    int failed = (int) syscall(GETTIMEOFDAY, now, zone);
    if (!failed) now->sec += AHEAD_S;
    return failed;
}

long time(long *also) {
    timespec now = {0, 0};
    clock_gettime(REALTIME, &now);
    if (also) *also = now.sec;
    return now.sec;
}
