#include "check/elf.h"

#include "base/file.h"
#include "base/text.h"

#include <cstring>
#include <elf.h>
#include <link.h>

namespace fvlm::check {
namespace {

// Reads structs out of the file, never past its end: the file is whatever somebody gave us.
class Reader {
 public:
  explicit Reader(std::string bytes) : bytes_(std::move(bytes)) {}

  template <class Struct>
  bool read(uint64_t offset, Struct& into) const {
    if (offset > bytes_.size() || bytes_.size() - offset < sizeof into) return false;
    std::memcpy(&into, bytes_.data() + offset, sizeof into);
    return true;
  }
  std::string text(uint64_t offset) const {
    if (offset >= bytes_.size()) return "";
    return std::string(bytes_.data() + offset, strnlen(bytes_.data() + offset, bytes_.size() - offset));
  }

 private:
  std::string bytes_;
};

#if defined(__x86_64__)
constexpr int machine = EM_X86_64;
#elif defined(__aarch64__)
constexpr int machine = EM_AARCH64;
#endif

// Where the file holds what the loader will lay at an address.
uint64_t offset_of(const std::vector<Elf64_Phdr>& segments, uint64_t address) {
  for (const auto& segment : segments)
    if (segment.p_type == PT_LOAD && address >= segment.p_vaddr && address - segment.p_vaddr < segment.p_filesz)
      return address - segment.p_vaddr + segment.p_offset;
  return UINT64_MAX;
}

void read_protections(const std::vector<Elf64_Phdr>& segments, ElfFile& file) {
  file.executable_stack = true; // what the loader assumes where no segment speaks of the stack
  for (const auto& segment : segments) {
    if (segment.p_type == PT_GNU_STACK) file.executable_stack = segment.p_flags & PF_X;
    if (segment.p_type == PT_LOAD && (segment.p_flags & PF_W) && (segment.p_flags & PF_X)) file.writable_code = true;
  }
}

// Gives the offset of the strings that names are in.
uint64_t read_dynamic(const Reader& reader, const std::vector<Elf64_Phdr>& segments, ElfFile& file) {
  uint64_t dynamic = 0, size = 0;
  for (const auto& segment : segments)
    if (segment.p_type == PT_DYNAMIC) dynamic = segment.p_offset, size = segment.p_filesz;
  uint64_t strings = 0;
  std::vector<uint64_t> needed, paths;
  for (uint64_t at = 0; at + sizeof(Elf64_Dyn) <= size; at += sizeof(Elf64_Dyn)) {
    Elf64_Dyn entry;
    if (!reader.read(dynamic + at, entry) || entry.d_tag == DT_NULL) break;
    if (entry.d_tag == DT_STRTAB) strings = offset_of(segments, entry.d_un.d_ptr);
    if (entry.d_tag == DT_NEEDED) needed.push_back(entry.d_un.d_val);
    if (entry.d_tag == DT_RPATH || entry.d_tag == DT_RUNPATH) paths.push_back(entry.d_un.d_val);
    if (entry.d_tag == DT_TEXTREL || (entry.d_tag == DT_FLAGS && (entry.d_un.d_val & DF_TEXTREL)))
      file.text_relocations = true;
  }
  for (uint64_t name : needed) file.needed.push_back(reader.text(strings + name));
  for (uint64_t name : paths)
    for (auto& folder : split(reader.text(strings + name), ':')) file.run_paths.push_back(folder);
  return strings;
}

bool is_export(const Elf64_Sym& symbol) {
  const auto visibility = ELF64_ST_VISIBILITY(symbol.st_other);
  return symbol.st_shndx != SHN_UNDEF && ELF64_ST_BIND(symbol.st_info) != STB_LOCAL && visibility != STV_HIDDEN &&
         visibility != STV_INTERNAL && ELF64_ST_TYPE(symbol.st_info) != STT_SECTION;
}

// The count of dynamic symbols stands in the section table.
void read_symbols(const Reader& reader, const Elf64_Ehdr& header, uint64_t strings, ElfFile& file) {
  for (size_t i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section;
    if (!reader.read(header.e_shoff + i * header.e_shentsize, section) || section.sh_type != SHT_DYNSYM) continue;
    for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= section.sh_size; at += sizeof(Elf64_Sym)) {
      Elf64_Sym symbol;
      if (!reader.read(section.sh_offset + at, symbol)) break;
      if (is_export(symbol)) file.exports.push_back(reader.text(strings + symbol.st_name));
      if (symbol.st_shndx == SHN_UNDEF && symbol.st_name) file.imports.push_back(reader.text(strings + symbol.st_name));
    }
  }
}

} // namespace

ElfFile read_elf(const std::filesystem::path& path) {
  Reader reader(read_file(path));
  Elf64_Ehdr header;
  if (!reader.read(0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
    return {.problem = "it is no ELF file"};
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != machine || header.e_type != ET_DYN)
    return {.problem = "it is no shared library for this machine"};
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  for (size_t i = 0; i < segments.size(); ++i)
    if (!reader.read(header.e_phoff + i * header.e_phentsize, segments[i])) return {.problem = "it is cut off"};

  ElfFile file;
  read_protections(segments, file);
  const uint64_t strings = read_dynamic(reader, segments, file);
  read_symbols(reader, header, strings, file);
  return file;
}

} // namespace fvlm::check
