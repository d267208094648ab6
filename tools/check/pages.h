// Memory of whole pages, which can be write-protected while a plugin is called.
#pragma once
#include <csignal>
#include <cstddef>
#include <string>
#include <vector>

namespace fvlm::check {

// Host memory in pages of its own, which can be write-protected.
class Pages {
 public:
  explicit Pages(size_t bytes);
  Pages(Pages&& other) noexcept;
  ~Pages();
  char* data() const { return data_; }
  size_t size() const { return size_; } // of whole pages

 private:
  char* data_;
  size_t size_;
};

// While this lives, these ranges are read-only: a write prints the range's name to standard error and crashes the
// process.
class WriteProtection {
 public:
  struct Range {
    void* begin;
    size_t size;
    std::string name;
  };
  explicit WriteProtection(std::vector<Range> ranges = {});
  ~WriteProtection();
  WriteProtection(const WriteProtection&) = delete;
  WriteProtection& operator=(const WriteProtection&) = delete;

 private:
  std::vector<Range> ranges_;
  struct sigaction before_ {};
};

// While this lives, query_support() passes read-only queries to supports().
class QueryWriteProtection {
 public:
  QueryWriteProtection();
  ~QueryWriteProtection();
  QueryWriteProtection(const QueryWriteProtection&) = delete;
  QueryWriteProtection& operator=(const QueryWriteProtection&) = delete;
  static bool is_active();
};

} // namespace fvlm::check
