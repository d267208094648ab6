// What a shared library's file says of itself, read without loading it.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace fvlm::check {

struct ElfFile {
  std::string problem;                // why it is not a shared library of this machine; the rest is empty then
  std::vector<std::string> exports;   // symbols that it gives to others
  std::vector<std::string> imports;   // symbols that it takes from others
  std::vector<std::string> needed;    // libraries that it asks for
  std::vector<std::string> run_paths; // folders in which it looks for them
  bool executable_stack = false, writable_code = false, text_relocations = false;
};

ElfFile read_elf(const std::filesystem::path& path);

} // namespace fvlm::check
