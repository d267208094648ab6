#include "check/pages.h"

#include "check/context.h"

#include <cstdint>
#include <string_view>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

namespace fvlm::check {

Pages::Pages(size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  size_ = (bytes + page - 1) / page * page;
  void* memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw RowAborted{State::failed, "no memory for pages"};
  data_ = static_cast<char*>(memory);
}

Pages::Pages(Pages&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}

Pages::~Pages() {
  if (data_) munmap(data_, size_);
}

namespace {

const std::vector<WriteProtection::Range>* protected_ranges = nullptr;

void report_forbidden_write(int, siginfo_t* info, void*) {
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  if (protected_ranges)
    for (const WriteProtection::Range& range : *protected_ranges) {
      const auto begin = reinterpret_cast<uintptr_t>(range.begin);
      if (at < begin || at >= begin + range.size) continue;
      for (std::string_view part : {std::string_view("it wrote to "), std::string_view(range.name),
                                    std::string_view(", which it may only read\n")})
        if (write(STDERR_FILENO, part.data(), part.size()) < 0) break;
    }
  signal(SIGSEGV, SIG_DFL); // the write is tried again, and ends the process
}

} // namespace

WriteProtection::WriteProtection(std::vector<Range> ranges) : ranges_(std::move(ranges)) {
  if (ranges_.empty()) return;
  struct sigaction action {};
  action.sa_sigaction = report_forbidden_write;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, &before_);
  protected_ranges = &ranges_;
  for (const Range& range : ranges_) mprotect(range.begin, range.size, PROT_READ);
}

WriteProtection::~WriteProtection() {
  if (ranges_.empty()) return;
  for (const Range& range : ranges_) mprotect(range.begin, range.size, PROT_READ | PROT_WRITE);
  protected_ranges = nullptr;
  sigaction(SIGSEGV, &before_, nullptr);
}

namespace {
bool queries_protected = false;
} // namespace

QueryWriteProtection::QueryWriteProtection() {
  queries_protected = true;
}
QueryWriteProtection::~QueryWriteProtection() {
  queries_protected = false;
}
bool QueryWriteProtection::is_active() {
  return queries_protected;
}

} // namespace fvlm::check
