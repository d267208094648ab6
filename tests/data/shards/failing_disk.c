/* LD_PRELOAD: makes reads of files whose path holds FAILING_DISK_FILE go wrong as FAILING_DISK says:
   "eio FROM COUNT"     calls of pread from number FROM on, COUNT of them (-1: all that follow), fail with EIO
   "vanish FROM COUNT"  from call FROM on ESTALE; then opening it fails COUNT times with ENOENT, and all is well again
   "short FROM COUNT"   those calls give at most 100 bytes
   "end FROM COUNT"     those calls give 0 bytes
   "slow FROM COUNT"    those calls take 20 ms
   FAILING_DISK_COUNT names a file that the number of calls is written to. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long calls, missing = -1;

static int concerns(const char* path) {
  const char* wanted = getenv("FAILING_DISK_FILE");
  size_t size = strlen(path), end = wanted ? strlen(wanted) : 0;
  return wanted && size >= end && strcmp(path + size - end, wanted) == 0;
}

static int concerns_descriptor(int fd) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0) return 0;
  path[size] = 0;
  return concerns(path);
}

static ssize_t failing(int fd, void* into, size_t size, off_t offset, ssize_t (*real)(int, void*, size_t, off_t)) {
  const char* rule = getenv("FAILING_DISK");
  char kind[16];
  long from = 0, count = 0;
  if (!rule || sscanf(rule, "%15s %ld %ld", kind, &from, &count) != 3 || !concerns_descriptor(fd))
    return real(fd, into, size, offset);
  pthread_mutex_lock(&lock);
  long number = ++calls;
  int vanishes = strcmp(kind, "vanish") == 0;
  int hit = number >= from && (count < 0 || vanishes || number < from + count);
  int gone = vanishes && hit && missing != 0;
  if (gone && missing < 0) missing = count; /* how often it cannot be opened */
  const char* log = getenv("FAILING_DISK_COUNT");
  if (log) {
    FILE* file = fopen(log, "w");
    if (file) {
      fprintf(file, "%ld", number);
      fclose(file);
    }
  }
  pthread_mutex_unlock(&lock);
  if (gone) return errno = ESTALE, -1;
  if (hit && strcmp(kind, "eio") == 0) return errno = EIO, -1;
  if (hit && strcmp(kind, "end") == 0) return 0;
  if (hit && strcmp(kind, "slow") == 0) usleep(20000);
  if (hit && strcmp(kind, "short") == 0 && size > 100) size = 100;
  return real(fd, into, size, offset);
}

ssize_t pread(int fd, void* into, size_t size, off_t offset) {
  static ssize_t (*real)(int, void*, size_t, off_t);
  if (!real) *(void**)&real = dlsym(RTLD_NEXT, "pread");
  return failing(fd, into, size, offset, real);
}

ssize_t pread64(int fd, void* into, size_t size, off64_t offset) {
  static ssize_t (*real)(int, void*, size_t, off_t);
  if (!real) *(void**)&real = dlsym(RTLD_NEXT, "pread64");
  return failing(fd, into, size, offset, real);
}

int open(const char* path, int flags, ...) {
  static int (*real)(const char*, int, mode_t);
  if (!real) *(void**)&real = dlsym(RTLD_NEXT, "open");
  va_list more;
  va_start(more, flags);
  mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;
  va_end(more);
  pthread_mutex_lock(&lock);
  int absent = missing > 0 && concerns(path);
  if (absent) --missing;
  pthread_mutex_unlock(&lock);
  if (absent) return errno = ENOENT, -1;
  return real(path, flags, mode);
}
