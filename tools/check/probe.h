// What a plugin does to the process: allocations and threads (its calls through the dynamic linker are counted), open
// files, memory in use.
#pragma once
#include <cstdint>
#include <set>
#include <string>

namespace fvlm::check {

// Intercepts a loaded library's calls of malloc, operator new, pthread_create and the like by patching its relocation
// table (PLT, GOT), and counts them. False if the table cannot be patched.
bool watch_calls(void* library);

// Between these two the calls are counted.
void start_counting();
void stop_counting();

struct CallCounts {
  int64_t allocations = 0, threads = 0;
  std::string allocator; // the function called first: "malloc", "operator new"
};
CallCounts take_counts();

// From now on the intercepted calls for time, process ids, environment variables, the host's name and its number of
// processors return other values, which depend on this number; 0 restores the real ones.
void shift_system_values(int world);

// Calls of these since the library was watched, counted all the time.
int64_t threads_started();
int64_t processes_started();

std::set<std::string> open_descriptors(); // "5 -> /tmp/x"
int thread_count();
int64_t bytes_allocated(); // by malloc, not given back
int64_t bytes_resident();
int64_t bytes_mapped();        // address space, touched or not
bool freed_memory_stays();     // true under AddressSanitizer, which quarantines freed memory
int64_t bytes_resident_peak(); // since reset_resident_peak()
void reset_resident_peak();

// The processor's floating-point control (rounding, precision, flush to zero), status bits left out.
uint32_t float_mode();
void set_float_mode(uint32_t mode);

} // namespace fvlm::check
