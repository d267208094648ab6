#include "base/elf.h"

#include "base/file.h"
#include "base/text.h"

#include <fmt/format.h>

namespace fvlm {
namespace {

// The file offset of what the loader maps at an address.
uint64_t offset_of(const std::vector<Elf64_Phdr>& segments, uint64_t address) {
  for (const auto& segment : segments)
    if (segment.p_type == PT_LOAD && address >= segment.p_vaddr && address - segment.p_vaddr < segment.p_filesz)
      return address - segment.p_vaddr + segment.p_offset;
  return UINT64_MAX;
}

void read_protections(const std::vector<Elf64_Phdr>& segments, ElfFile& file) {
  file.executable_stack = true; // the loader's default without a PT_GNU_STACK segment
  for (const auto& segment : segments) {
    if (segment.p_type == PT_GNU_STACK) file.executable_stack = segment.p_flags & PF_X;
    if (segment.p_type == PT_LOAD && (segment.p_flags & PF_W) && (segment.p_flags & PF_X)) file.writable_code = true;
  }
}

// Returns the file offset of the dynamic section's string table.
uint64_t read_dynamic(const ElfReader& reader, const std::vector<Elf64_Phdr>& segments, ElfFile& file) {
  uint64_t dynamic = 0, size = 0;
  for (const auto& segment : segments)
    if (segment.p_type == PT_DYNAMIC) dynamic = segment.p_offset, size = segment.p_filesz;
  uint64_t strings = 0;
  std::vector<uint64_t> needed, paths;
  for (uint64_t at = 0; at + sizeof(Elf64_Dyn) <= size; at += sizeof(Elf64_Dyn)) {
    const auto entry = reader.get<Elf64_Dyn>(dynamic + at);
    if (!entry || entry->d_tag == DT_NULL) break;
    if (entry->d_tag == DT_STRTAB) strings = offset_of(segments, entry->d_un.d_ptr);
    if (entry->d_tag == DT_NEEDED) needed.push_back(entry->d_un.d_val);
    if (entry->d_tag == DT_RPATH || entry->d_tag == DT_RUNPATH) paths.push_back(entry->d_un.d_val);
    if (entry->d_tag == DT_TEXTREL || (entry->d_tag == DT_FLAGS && (entry->d_un.d_val & DF_TEXTREL)))
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

// The number of dynamic symbols is known only from the section table.
void read_symbols(const ElfReader& reader, const Elf64_Ehdr& header, uint64_t strings, ElfFile& file) {
  for (size_t i = 0; i < header.e_shnum; ++i) {
    const auto section = reader.get<Elf64_Shdr>(header.e_shoff + i * header.e_shentsize);
    if (!section || section->sh_type != SHT_DYNSYM) continue;
    for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= section->sh_size; at += sizeof(Elf64_Sym)) {
      const auto symbol = reader.get<Elf64_Sym>(section->sh_offset + at);
      if (!symbol) break;
      const bool is_import = symbol->st_shndx == SHN_UNDEF && symbol->st_name != 0;
      if (is_export(*symbol)) file.exports.push_back(reader.text(strings + symbol->st_name));
      if (is_import) file.imports.push_back(reader.text(strings + symbol->st_name));
    }
  }
}

} // namespace

std::string elf_machine_name(Elf64_Half machine) {
  switch (machine) {
  case EM_X86_64:
    return "x86-64";
  case EM_AARCH64:
    return "aarch64";
  case EM_386:
    return "i386";
  case EM_ARM:
    return "arm";
  case EM_PPC64:
    return "ppc64";
  case EM_RISCV:
    return "riscv";
  case EM_CUDA:
    return "CUDA device code";
  default:
    return fmt::format("machine {}", machine);
  }
}

std::string ElfReader::text(uint64_t offset) const {
  constexpr uint64_t step = 256;
  std::string text;
  for (; offset < size_; offset += step) {
    const std::string bytes = read_(offset, std::min(step, size_ - offset));
    const size_t end = bytes.find('\0');
    text += bytes.substr(0, end);
    if (end != std::string::npos || bytes.size() < step) break;
  }
  return text;
}

ElfFile read_elf(const std::filesystem::path& path) {
  const std::string bytes = read_file(path);
  const ElfReader reader(bytes.size(), [&](uint64_t offset, uint64_t count) { return bytes.substr(offset, count); });
  const auto header = reader.get<Elf64_Ehdr>(0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return {.problem = "it is not an ELF file"};
  if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_machine != elf_machine_here || header->e_type != ET_DYN)
    return {.problem = "it is not a shared library for this machine"};
  std::vector<Elf64_Phdr> segments;
  for (size_t i = 0; i < header->e_phnum; ++i) {
    const auto segment = reader.get<Elf64_Phdr>(header->e_phoff + i * header->e_phentsize);
    if (!segment) return {.problem = "it is truncated"};
    segments.push_back(*segment);
  }

  ElfFile file;
  read_protections(segments, file);
  const uint64_t strings = read_dynamic(reader, segments, file);
  read_symbols(reader, *header, strings, file);
  return file;
}

} // namespace fvlm
