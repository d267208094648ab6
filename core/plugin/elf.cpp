#include "plugin/elf.h"

#include "base/elf.h"
#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <elf.h>
#include <unistd.h>
#include <vector>

namespace fvlm {
namespace {

// Reads structs and turns what is missing into errors.
class Reader {
 public:
  explicit Reader(const OpenedFile& file)
      : file_(file),
        reader_(file.identity().size, [&file](uint64_t offset, uint64_t bytes) { return file.read(offset, bytes); }) {}

  [[noreturn]] void refuse(std::string what, std::string advice) const {
    throw Error(ErrorKind::plugin, std::move(what)).at(file_.path().string()).advise(std::move(advice));
  }

  [[noreturn]] void truncated(std::string_view part) const {
    refuse(fmt::format("truncated: it has {} bytes, and its {} end after that", size(), part),
           "copy or build the library again");
  }

  uint64_t size() const { return reader_.size(); }
  bool holds(uint64_t offset, uint64_t bytes) const { return reader_.contains(offset, bytes); }

  template <class Struct>
  Struct get(uint64_t offset) const {
    const auto value = reader_.get<Struct>(offset);
    if (!value) truncated("headers");
    return *value;
  }

 private:
  const OpenedFile& file_;
  ElfReader reader_;
};

Elf64_Ehdr check_header(const Reader& reader) {
  const std::string rebuild = "build it with `cc -shared -fPIC` for this machine";
  if (reader.size() == 0) reader.refuse("an empty file", rebuild);
  if (reader.size() < EI_NIDENT)
    reader.refuse(fmt::format("not an ELF file: it has only {} bytes", reader.size()), rebuild);
  auto identification = reader.get<std::array<unsigned char, EI_NIDENT>>(0);
  if (std::memcmp(identification.data(), ELFMAG, SELFMAG) != 0) reader.refuse("not an ELF file", rebuild);
  if (identification[EI_CLASS] != ELFCLASS64)
    reader.refuse("a 32-bit library; the engine is a 64-bit program", "build it without -m32");
  if (identification[EI_DATA] != ELFDATA2LSB) reader.refuse("a big-endian library", rebuild);
  auto header = reader.get<Elf64_Ehdr>(0);
  if (header.e_machine != elf_machine_here)
    reader.refuse(fmt::format("built for {}; this machine is {}", elf_machine_name(header.e_machine),
                              elf_machine_name(elf_machine_here)),
                  rebuild);
  if (header.e_type != ET_DYN)
    reader.refuse(fmt::format("{}, not a shared library", header.e_type == ET_REL    ? "an object file"
                                                          : header.e_type == ET_EXEC ? "a program"
                                                                                     : "an ELF file of another type"),
                  rebuild);
  return header;
}

bool ends_within(const Elf64_Phdr& segment, uint64_t bytes) {
  return bytes <= UINT64_MAX - segment.p_vaddr;
}

// The dynamic linker writes to these segments' addresses without a check, so they have to be part of the library.
void check_place(const Reader& reader, const Elf64_Phdr& segment, const std::vector<Elf64_Phdr>& loaded) {
  const char* name = segment.p_type == PT_DYNAMIC     ? "DYNAMIC"
                     : segment.p_type == PT_TLS       ? "TLS"
                     : segment.p_type == PT_GNU_RELRO ? "RELRO"
                                                      : "EH_FRAME";
  const bool is_relro = segment.p_type == PT_GNU_RELRO;
  // The zeros at the end of a TLS segment are not in the file. A RELRO segment may end at the end of a page, past that
  // of the LOAD segment.
  const uint64_t bytes = segment.p_type == PT_TLS ? segment.p_filesz : segment.p_memsz;
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const bool inside = ends_within(segment, bytes) && std::ranges::any_of(loaded, [&](const Elf64_Phdr& load) {
                        uint64_t end = load.p_vaddr + load.p_memsz;
                        if (is_relro) end = (end + page - 1) / page * page;
                        return segment.p_vaddr >= load.p_vaddr && segment.p_vaddr + bytes <= end &&
                               (!is_relro || (load.p_flags & PF_W));
                      });
  if (bytes > 0 && !inside)
    reader.refuse(fmt::format("its {} segment, {} bytes at address {:#x}, is not within a {}LOAD segment", name, bytes,
                              segment.p_vaddr, is_relro ? "writable " : ""),
                  "copy or build the library again");
}

} // namespace

void check_elf(const OpenedFile& file) {
  Reader reader(file);
  auto header = check_header(reader);
  if (header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phnum == 0)
    reader.refuse("its ELF header lists no segments", "copy or build the library again");
  if (!reader.holds(header.e_phoff, uint64_t{header.e_phnum} * sizeof(Elf64_Phdr))) reader.truncated("program headers");
  bool dynamic = false;
  std::vector<Elf64_Phdr> loaded, placed;
  for (uint64_t i = 0; i < header.e_phnum; ++i) {
    auto segment = reader.get<Elf64_Phdr>(header.e_phoff + i * sizeof(Elf64_Phdr));
    if ((segment.p_type == PT_LOAD || segment.p_type == PT_DYNAMIC) &&
        !reader.holds(segment.p_offset, segment.p_filesz))
      reader.truncated("segments");
    dynamic |= segment.p_type == PT_DYNAMIC;
    if (segment.p_type == PT_LOAD) {
      const uint64_t free = loaded.empty() ? 0 : loaded.back().p_vaddr + loaded.back().p_memsz;
      // The rest of the memory is set to 0, which needs a segment that can be written.
      if (segment.p_filesz < segment.p_memsz && !(segment.p_flags & PF_W))
        reader.refuse(fmt::format("its LOAD segment {} is read-only and ends before its memory", loaded.size()),
                      "copy or build the library again");
      if (segment.p_filesz > segment.p_memsz || !ends_within(segment, segment.p_memsz) || segment.p_vaddr < free)
        reader.refuse(
            fmt::format("its LOAD segment {} overlaps another one or is larger than its memory", loaded.size()),
            "copy or build the library again");
      loaded.push_back(segment);
    }
    for (const Elf64_Word type : {PT_DYNAMIC, PT_TLS, PT_GNU_RELRO, PT_GNU_EH_FRAME})
      if (segment.p_type == type) placed.push_back(segment);
  }
  for (const Elf64_Phdr& segment : placed) check_place(reader, segment, loaded);
  if (!dynamic)
    reader.refuse("it has no dynamic section: it was linked statically", "build it with `cc -shared -fPIC`");
  if (header.e_shoff && !reader.holds(header.e_shoff, uint64_t{header.e_shnum} * header.e_shentsize))
    reader.truncated("section headers");
}

} // namespace fvlm
