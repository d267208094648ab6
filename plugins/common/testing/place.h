// place.h: where the plugin under test works: on the CPU, unless a test of a CUDA plugin says otherwise.
#pragma once

#include <fvlm/tensor.h>

#include <cstdlib>
#include <new>
#include <string>
#include <vector>

namespace fvlm::testing {

struct Place {
  fvlm_device device{FVLM_CPU, 0};
  void* (*allocate)(std::size_t bytes) = [](std::size_t bytes) { return std::malloc(bytes); };
  void (*release)(void* memory) = [](void* memory) { std::free(memory); };
  void (*wait)() = [] {};                           // for all that was enqueued
  std::vector<std::string> (*variants)() = nullptr; // what tests are run for; NULL: the CPU's instruction sets
  std::string missing;                              // why tests have to be skipped here, "" where they need not
};

inline Place& place() {
  static Place here;
  return here;
}

// Memory that the plugin and the test both see.
template <class Element>
struct PlaceMemory {
  using value_type = Element;
  PlaceMemory() = default;
  template <class Other>
  PlaceMemory(const PlaceMemory<Other>&) {}

  Element* allocate(std::size_t count) {
    void* memory = place().allocate(count * sizeof(Element));
    if (!memory) throw std::bad_alloc();
    return static_cast<Element*>(memory);
  }
  void deallocate(Element* memory, std::size_t) { place().release(memory); }
  template <class Other>
  bool operator==(const PlaceMemory<Other>&) const {
    return true;
  }
};

template <class Element>
using PlaceVector = std::vector<Element, PlaceMemory<Element>>;

} // namespace fvlm::testing
