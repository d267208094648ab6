// Memory of whole pages, and how a plugin is kept from writing to what it may only read.
#pragma once
#include <csignal>
#include <cstddef>
#include <string>
#include <vector>

namespace fvlm::check {

// Host memory in pages of its own, which can be closed to writing.
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

// While this lives, a write to any of these ranges ends the process, which says to what it was.
class Sealed {
 public:
  struct Range {
    void* begin;
    size_t size;
    std::string name;
  };
  explicit Sealed(std::vector<Range> ranges = {});
  ~Sealed();
  Sealed(const Sealed&) = delete;
  Sealed& operator=(const Sealed&) = delete;

 private:
  std::vector<Range> ranges_;
  struct sigaction before_ {};
};

// While this lives, ask() hands supports() queries that cannot be written to.
class SealedQueries {
 public:
  SealedQueries();
  ~SealedQueries();
  SealedQueries(const SealedQueries&) = delete;
  SealedQueries& operator=(const SealedQueries&) = delete;
  static bool wanted();
};

} // namespace fvlm::check
