// test_device.h: the device that the plugin under test runs on: the CPU, or the GPU if cuda_test_device.cpp is linked.
#pragma once

#include <fvlm/tensor.h>

#include <cstdlib>
#include <new>
#include <string>
#include <vector>

namespace fvlm::testing {

struct TestDevice {
  fvlm_device device{FVLM_CPU, 0};
  void* (*allocate)(std::size_t bytes) = [](std::size_t bytes) { return std::malloc(bytes); };
  void (*release)(void* memory) = [](void* memory) { std::free(memory); };
  void (*wait)() = [] {}; // synchronizes with all enqueued work
  // the variants that tests are instantiated for; NULL: the CPU's instruction sets
  std::vector<std::string> (*variants)() = nullptr;
  std::string missing; // why tests have to be skipped on this machine, "" if they need not be
};

inline TestDevice& test_device() {
  static TestDevice here;
  return here;
}

// An allocator for memory that both the plugin and the test can access.
template <class Element>
struct TestAllocator {
  using value_type = Element;
  TestAllocator() = default;
  template <class Other>
  TestAllocator(const TestAllocator<Other>&) {}

  Element* allocate(std::size_t count) {
    void* memory = test_device().allocate(count * sizeof(Element));
    if (!memory) throw std::bad_alloc();
    return static_cast<Element*>(memory);
  }
  void deallocate(Element* memory, std::size_t) { test_device().release(memory); }
  template <class Other>
  bool operator==(const TestAllocator<Other>&) const {
    return true;
  }
};

template <class Element>
using TestVector = std::vector<Element, TestAllocator<Element>>;

} // namespace fvlm::testing
