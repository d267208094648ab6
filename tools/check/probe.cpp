#include "check/probe.h"

#include <fmt/format.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <dirent.h>
#include <dlfcn.h>
#include <elf.h>
#include <fstream>
#include <link.h>
#include <malloc.h>
#include <new>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
extern "C" size_t __sanitizer_get_current_allocated_bytes(); // of a header that some compilers come without
#endif

namespace fvlm::check {
namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0}, threads{0}, threads_ever{0}, processes_ever{0};
std::atomic<const char*> first_allocator{nullptr};

void count_allocation(const char* name) {
  if (!counting) return;
  const char* none = nullptr;
  first_allocator.compare_exchange_strong(none, name);
  ++allocations;
}

// One wrapper for each intercepted function: counts, then calls the original entry of the library's table.
template <int index, class Result, class... Args>
struct Wrapper {
  static inline Result (*original)(Args...) = nullptr;
  static inline const char* name = "";
  static Result call(Args... args) {
    count_allocation(name);
    return original(args...);
  }
};

template <int index, class Result, class... Args>
struct ThreadWrapper {
  static inline Result (*original)(Args...) = nullptr;
  static Result call(Args... args) {
    if (counting) ++threads;
    ++threads_ever;
    return original(args...);
  }
};

template <int index, class Result, class... Args>
struct ProcessWrapper {
  static inline Result (*original)(Args...) = nullptr;
  static Result call(Args... args) {
    ++processes_ever;
    return original(args...);
  }
};

std::atomic<int> value_shift{0};

// Returns the original result (time, process id, ...), shifted by an amount that depends on value_shift.
template <int index, class Result, class... Args>
struct ShiftedWrapper {
  static inline Result (*original)(Args...) = nullptr;
  static Result call(Args... args) {
    const auto answer = original(args...);
    const int number = value_shift;
    return number == 0 ? answer : answer + static_cast<Result>(number * 1000003 + number);
  }
};

struct ClockWrapper {
  static inline int (*original)(clockid_t, timespec*) = nullptr;
  static int call(clockid_t clock, timespec* time) {
    const int status = original(clock, time);
    const int number = value_shift;
    if (number && time) time->tv_sec += number * 1000003L + number, time->tv_nsec = time->tv_nsec / 7 + number;
    return status;
  }
};

struct DayWrapper {
  static inline int (*original)(timeval*, void*) = nullptr;
  static int call(timeval* time, void* zone) {
    const int status = original(time, zone);
    const int number = value_shift;
    if (number && time) time->tv_sec += number * 1000003L + number, time->tv_usec = time->tv_usec / 7 + number;
    return status;
  }
};

struct TimeWrapper {
  static inline time_t (*original)(time_t*) = nullptr;
  static time_t call(time_t* time) {
    const int number = value_shift;
    const time_t answer = original(nullptr) + number * 1000003L + number;
    if (time) *time = answer;
    return answer;
  }
};

template <int index>
struct VariableWrapper {
  static inline char* (*original)(const char*) = nullptr;
  static char* call(const char* name) {
    static char values[7][8] = {"", "1", "23", "/tmp", "false", "456789", "C.UTF-8"};
    const int number = value_shift;
    if (number == 0) return original(name);
    return number % 8 == 0 ? nullptr : values[number % 8 - 1];
  }
};

// What differs from machine to machine: the name of the host and the number of its processors.
void rename_host(char* name, size_t size) {
  if (value_shift != 0 && size > 0) std::snprintf(name, size, "%.*s", value_shift % 8 + 1, "node-3f.example");
}

struct HostNameWrapper {
  static inline int (*original)(char*, size_t) = nullptr;
  static int call(char* name, size_t size) {
    const int status = original(name, size);
    if (status == 0) rename_host(name, size);
    return status;
  }
};

struct SystemNameWrapper {
  static inline int (*original)(utsname*) = nullptr;
  static int call(utsname* names) {
    const int status = original(names);
    if (status >= 0) {
      rename_host(names->nodename, sizeof names->nodename);
      rename_host(names->release, sizeof names->release);
    }
    return status;
  }
};

int processors(int real) {
  return value_shift == 0 ? real : 1 << value_shift % 8;
}

template <int index>
struct ProcessorsWrapper {
  static inline int (*original)() = nullptr;
  static int call() { return processors(original()); }
};

struct SystemLimitWrapper {
  static inline long (*original)(int) = nullptr;
  static long call(int name) {
    const long answer = original(name);
    return name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF ? processors(static_cast<int>(answer)) : answer;
  }
};

struct InterceptedCall {
  const char* symbol;
  void* wrapper;
  void** original;
};

template <class Wrap>
InterceptedCall counted(const char* symbol) {
  return {symbol, reinterpret_cast<void*>(&Wrap::call), reinterpret_cast<void**>(&Wrap::original)};
}

template <int index, class Result, class... Args>
InterceptedCall allocator(const char* symbol, const char* name) {
  using Wrap = Wrapper<index, Result, Args...>;
  Wrap::name = name;
  return {symbol, reinterpret_cast<void*>(&Wrap::call), reinterpret_cast<void**>(&Wrap::original)};
}

const std::vector<InterceptedCall>& intercepted_calls() {
  using std::align_val_t, std::nothrow_t;
  static const std::vector<InterceptedCall> all{
      allocator<0, void*, size_t>("malloc", "malloc"),
      allocator<1, void*, size_t, size_t>("calloc", "calloc"),
      allocator<2, void*, void*, size_t>("realloc", "realloc"),
      allocator<3, void*, size_t, size_t>("aligned_alloc", "aligned_alloc"),
      allocator<4, void*, size_t, size_t>("memalign", "memalign"),
      allocator<5, int, void**, size_t, size_t>("posix_memalign", "posix_memalign"),
      allocator<6, void*, size_t>("_Znwm", "operator new"),
      allocator<7, void*, size_t>("_Znam", "operator new[]"),
      allocator<8, void*, size_t, align_val_t>("_ZnwmSt11align_val_t", "operator new"),
      allocator<9, void*, size_t, align_val_t>("_ZnamSt11align_val_t", "operator new[]"),
      allocator<10, void*, size_t, const nothrow_t&>("_ZnwmRKSt9nothrow_t", "operator new"),
      allocator<11, void*, size_t, const nothrow_t&>("_ZnamRKSt9nothrow_t", "operator new[]"),
      allocator<12, void*, void*, size_t, int, int, int, off_t>("mmap", "mmap"),
      counted<ThreadWrapper<0, int, pthread_t*, const pthread_attr_t*, void* (*)(void*), void*>>("pthread_create"),
      counted<ThreadWrapper<1, int, void*, int (*)(void*), void*>>("thrd_create"),
      // std::thread's constructor, whose pthread_create lies in another library.
      counted<ThreadWrapper<2, void, void*, void*, void (*)()>>(
          "_ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE"),
      counted<ShiftedWrapper<0, pid_t>>("getpid"),
      counted<ShiftedWrapper<1, pid_t>>("getppid"),
      counted<ShiftedWrapper<2, pid_t>>("gettid"),
      counted<ShiftedWrapper<3, clock_t>>("clock"),
      counted<ShiftedWrapper<4, uid_t>>("getuid"),
      counted<ShiftedWrapper<5, int64_t>>("_ZNSt6chrono3_V212system_clock3nowEv"),
      counted<ShiftedWrapper<6, int64_t>>("_ZNSt6chrono3_V212steady_clock3nowEv"),
      counted<TimeWrapper>("time"),
      counted<DayWrapper>("gettimeofday"),
      counted<ClockWrapper>("clock_gettime"),
      counted<VariableWrapper<0>>("getenv"),
      counted<VariableWrapper<1>>("secure_getenv"),
      counted<HostNameWrapper>("gethostname"),
      counted<SystemNameWrapper>("uname"),
      counted<SystemLimitWrapper>("sysconf"),
      counted<ProcessorsWrapper<0>>("get_nprocs"),
      counted<ProcessorsWrapper<1>>("get_nprocs_conf"),
      counted<ProcessorsWrapper<2>>("sched_getcpu"),
      counted<ProcessorsWrapper<3>>("_ZNSt6thread20hardware_concurrencyEv"),
      counted<ProcessWrapper<0, pid_t>>("fork"),
      counted<ProcessWrapper<1, int, pid_t*, const char*, const void*, const void*, char* const*, char* const*>>(
          "posix_spawn"),
      counted<ProcessWrapper<2, int, pid_t*, const char*, const void*, const void*, char* const*, char* const*>>(
          "posix_spawnp"),
      counted<ProcessWrapper<3, int, const char*>>("system"),
      counted<ProcessWrapper<4, FILE*, const char*, const char*>>("popen"),
  };
  return all;
}

bool replace(void** slot, const InterceptedCall& function) {
  if (*slot == function.wrapper) return true;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  void* begin = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(slot) & ~(page - 1));
  // The table may have been made read-only after loading; it lies in one page or ends in the next.
  if (mprotect(begin, 2 * page, PROT_READ | PROT_WRITE) != 0 && mprotect(begin, page, PROT_READ | PROT_WRITE) != 0)
    return false;
  *function.original = *slot;
  *slot = function.wrapper;
  return true;
}

int64_t status_field(const char* field) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(field)) return std::stoll(line.substr(std::strlen(field) + 1)) * 1024;
  return 0;
}

} // namespace

bool watch_calls(void* library) {
  link_map* map = nullptr;
  if (!library || dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return false;
  const ElfW(Sym)* symbols = nullptr;
  const char* strings = nullptr;
  const ElfW(Rela)* plt = nullptr, *rela = nullptr;
  size_t plt_bytes = 0, rela_bytes = 0;
  for (const ElfW(Dyn)* entry = map->l_ld; entry->d_tag != DT_NULL; ++entry) {
    switch (entry->d_tag) {
    case DT_SYMTAB:
      symbols = reinterpret_cast<const ElfW(Sym)*>(entry->d_un.d_ptr);
      break;
    case DT_STRTAB:
      strings = reinterpret_cast<const char*>(entry->d_un.d_ptr);
      break;
    case DT_JMPREL:
      plt = reinterpret_cast<const ElfW(Rela)*>(entry->d_un.d_ptr);
      break;
    case DT_PLTRELSZ:
      plt_bytes = entry->d_un.d_val;
      break;
    case DT_RELA:
      rela = reinterpret_cast<const ElfW(Rela)*>(entry->d_un.d_ptr);
      break;
    case DT_RELASZ:
      rela_bytes = entry->d_un.d_val;
      break;
    }
  }
  if (!symbols || !strings) return false;
  auto walk = [&](const ElfW(Rela) * relocations, size_t bytes) {
    for (size_t i = 0; relocations && i < bytes / sizeof *relocations; ++i) {
      const auto& relocation = relocations[i];
#if defined(__x86_64__)
      const auto type = ELF64_R_TYPE(relocation.r_info);
      if (type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT && type != R_X86_64_64) continue;
#elif defined(__aarch64__)
      const auto type = ELF64_R_TYPE(relocation.r_info);
      if (type != R_AARCH64_JUMP_SLOT && type != R_AARCH64_GLOB_DAT && type != R_AARCH64_ABS64) continue;
#else
      return false;
#endif
      const char* name = strings + symbols[ELF64_R_SYM(relocation.r_info)].st_name;
      for (const InterceptedCall& function : intercepted_calls())
        if (std::strcmp(name, function.symbol) == 0)
          if (!replace(reinterpret_cast<void**>(map->l_addr + relocation.r_offset), function)) return false;
    }
    return true;
  };
  return walk(plt, plt_bytes) && walk(rela, rela_bytes);
}

void start_counting() {
  counting = true;
}
void stop_counting() {
  counting = false;
}

CallCounts take_counts() {
  const char* name = first_allocator.exchange(nullptr);
  return {allocations.exchange(0), threads.exchange(0), name ? name : ""};
}

void shift_system_values(int number) {
  value_shift = number;
}

int64_t threads_started() {
  return threads_ever;
}
int64_t processes_started() {
  return processes_ever;
}

std::set<std::string> open_descriptors() {
  std::set<std::string> found;
  DIR* folder = opendir("/proc/self/fd");
  if (!folder) return found;
  const int own = dirfd(folder);
  while (const dirent* entry = readdir(folder)) {
    if (entry->d_name[0] == '.' || std::atoi(entry->d_name) == own) continue;
    char target[512];
    const std::string link = std::string("/proc/self/fd/") + entry->d_name;
    const ssize_t length = readlink(link.c_str(), target, sizeof target);
    found.insert(
        fmt::format("{} -> {}", entry->d_name, length > 0 ? std::string(target, static_cast<size_t>(length)) : "?"));
  }
  closedir(folder);
  return found;
}

int thread_count() {
  int count = 0;
  DIR* folder = opendir("/proc/self/task");
  if (!folder) return 0;
  while (const dirent* entry = readdir(folder)) count += entry->d_name[0] != '.';
  closedir(folder);
  return count;
}

int64_t bytes_allocated() {
#if defined(__SANITIZE_ADDRESS__)
  return static_cast<int64_t>(__sanitizer_get_current_allocated_bytes());
#else
  const auto info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
#endif
}

bool freed_memory_stays() {
#if defined(__SANITIZE_ADDRESS__)
  return true;
#else
  return false;
#endif
}

int64_t bytes_resident() {
  return status_field("VmRSS:");
}
int64_t bytes_mapped() {
  return status_field("VmSize:");
}
int64_t bytes_resident_peak() {
  return status_field("VmHWM:");
}
void reset_resident_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

uint32_t float_mode() {
#if defined(__x86_64__)
  uint16_t x87 = 0;
  asm volatile("fnstcw %0" : "=m"(x87));
  return (_mm_getcsr() & ~0x3Fu) | static_cast<uint32_t>(x87) << 16;
#else
  return 0;
#endif
}

void set_float_mode([[maybe_unused]] uint32_t mode) {
#if defined(__x86_64__)
  const auto x87 = static_cast<uint16_t>(mode >> 16);
  asm volatile("fldcw %0" : : "m"(x87));
  _mm_setcsr(mode & 0xFFFF);
#endif
}

} // namespace fvlm::check
