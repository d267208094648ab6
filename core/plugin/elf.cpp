#include "plugin/elf.h"

#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <elf.h>
#include <unistd.h>
#include <vector>

namespace fvlm {
namespace {

#if defined(__x86_64__)
constexpr Elf64_Half machine_here = EM_X86_64;
#elif defined(__aarch64__)
constexpr Elf64_Half machine_here = EM_AARCH64;
#else
#error "which e_machine has this processor?"
#endif

std::string machine_name(Elf64_Half machine) {
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

class Reader {
 public:
  explicit Reader(const OpenedFile& file) : file_(file) {}

  [[noreturn]] void refuse(std::string what, std::string advice) const {
    throw Error(ErrorKind::plugin, std::move(what)).at(file_.path().string()).advise(std::move(advice));
  }

  [[noreturn]] void truncated(std::string_view part) const {
    refuse(fmt::format("cut short: it has {} bytes and its {} reach past them", size(), part),
           "copy or build the library again");
  }

  uint64_t size() const { return file_.identity().size; }
  bool holds(uint64_t offset, uint64_t bytes) const { return offset <= size() && bytes <= size() - offset; }

  template <class Struct>
  Struct get(uint64_t offset) const {
    Struct value{};
    std::string bytes = file_.read(offset, sizeof value);
    if (bytes.size() != sizeof value) truncated("headers");
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }

 private:
  const OpenedFile& file_;
};

Elf64_Ehdr check_header(const Reader& reader) {
  const std::string rebuild = "build it with `cc -shared -fPIC` for this machine";
  if (reader.size() == 0) reader.refuse("an empty file", rebuild);
  if (reader.size() < EI_NIDENT)
    reader.refuse(fmt::format("no ELF file: it has only {} bytes", reader.size()), rebuild);
  auto identification = reader.get<std::array<unsigned char, EI_NIDENT>>(0);
  if (std::memcmp(identification.data(), ELFMAG, SELFMAG) != 0) reader.refuse("no ELF file", rebuild);
  if (identification[EI_CLASS] != ELFCLASS64)
    reader.refuse("a 32-bit library; the engine is a 64-bit program", "build it without -m32");
  if (identification[EI_DATA] != ELFDATA2LSB) reader.refuse("a big-endian library", rebuild);
  auto header = reader.get<Elf64_Ehdr>(0);
  if (header.e_machine != machine_here)
    reader.refuse(
        fmt::format("built for {}; this machine is {}", machine_name(header.e_machine), machine_name(machine_here)),
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

// What the linker does with these segments' addresses it does to whatever lies there, of this library or of another.
void check_place(const Reader& reader, const Elf64_Phdr& segment, const std::vector<Elf64_Phdr>& loaded) {
  const char* name = segment.p_type == PT_DYNAMIC     ? "DYNAMIC"
                     : segment.p_type == PT_TLS       ? "TLS"
                     : segment.p_type == PT_GNU_RELRO ? "RELRO"
                                                      : "EH_FRAME";
  const bool is_relro = segment.p_type == PT_GNU_RELRO;
  // Zeros behind a TLS segment's content lie in no file. Linkers give RELRO whole pages, of which the linker at run
  // time protects those that are full.
  const uint64_t bytes = segment.p_type == PT_TLS ? segment.p_filesz : segment.p_memsz;
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const bool inside =
      ends_within(segment, bytes) && std::any_of(loaded.begin(), loaded.end(), [&](const Elf64_Phdr& load) {
        uint64_t end = load.p_vaddr + load.p_memsz;
        if (is_relro) end = (end + page - 1) / page * page;
        return segment.p_vaddr >= load.p_vaddr && segment.p_vaddr + bytes <= end &&
               (!is_relro || (load.p_flags & PF_W));
      });
  if (bytes > 0 && !inside)
    reader.refuse(fmt::format("its {} segment, {} bytes at address {:#x}, lies in no {}LOAD segment", name, bytes,
                              segment.p_vaddr, is_relro ? "writable " : ""),
                  "copy or build the library again");
}

} // namespace

void check_elf(const OpenedFile& file) {
  Reader reader(file);
  auto header = check_header(reader);
  if (header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phnum == 0)
    reader.refuse("its ELF header names no segments", "copy or build the library again");
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
      if (segment.p_filesz > segment.p_memsz || !ends_within(segment, segment.p_memsz) || segment.p_vaddr < free)
        reader.refuse(fmt::format("its LOAD segment {} overlaps another or is larger than its memory", loaded.size()),
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
