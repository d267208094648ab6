// Reads ELF files (shared libraries) without loading them. The files are untrusted: nothing is read past their end.
#pragma once
#include <cstdint>
#include <cstring>
#include <elf.h>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm {

#if defined(__x86_64__)
inline constexpr Elf64_Half elf_machine_here = EM_X86_64;
#elif defined(__aarch64__)
inline constexpr Elf64_Half elf_machine_here = EM_AARCH64;
#else
#error "which e_machine has this processor?"
#endif

std::string elf_machine_name(Elf64_Half machine); // "x86-64"

// Bounds-checked access to the structs of a file.
class ElfReader {
 public:
  // Returns `bytes` bytes from `offset`, or fewer at the end of the file.
  using Read = std::function<std::string(uint64_t offset, uint64_t bytes)>;
  ElfReader(uint64_t size, Read read) : size_(size), read_(std::move(read)) {}

  uint64_t size() const { return size_; }
  bool contains(uint64_t offset, uint64_t bytes) const { return offset <= size_ && bytes <= size_ - offset; }

  // Empty where the struct would end past the end of the file.
  template <class Struct>
  std::optional<Struct> get(uint64_t offset) const {
    if (!contains(offset, sizeof(Struct))) return std::nullopt;
    const std::string bytes = read_(offset, sizeof(Struct));
    if (bytes.size() != sizeof(Struct)) return std::nullopt;
    Struct value;
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  std::string text(uint64_t offset) const; // a string up to its terminating 0

 private:
  uint64_t size_;
  Read read_;
};

// What the headers and the dynamic section of a shared library say.
struct ElfFile {
  std::string problem;                // why it is not a shared library of this machine; the rest is empty then
  std::vector<std::string> exports;   // names of exported dynamic symbols
  std::vector<std::string> imports;   // names of undefined dynamic symbols
  std::vector<std::string> needed;    // DT_NEEDED
  std::vector<std::string> run_paths; // folders of DT_RPATH and DT_RUNPATH
  bool executable_stack = false, writable_code = false, text_relocations = false;
};
ElfFile read_elf(const std::filesystem::path& path);

} // namespace fvlm
