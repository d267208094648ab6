// Reading shared libraries: this test's own program, and damaged files.
#include "base/elf.h"
#include "base/file.h"
#include "base/scratch_folder.h"

#include <gtest/gtest.h>

#include <gmock/gmock.h>

using namespace fvlm;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Elf, ReadsWhatALibraryNeeds) {
  const ElfFile file = read_elf("/proc/self/exe");
  EXPECT_THAT(file.problem, IsEmpty());
  EXPECT_THAT(file.needed, testing::Contains("libc.so.6"));
  EXPECT_THAT(file.imports, testing::Contains("__libc_start_main"));
  EXPECT_FALSE(file.executable_stack || file.writable_code || file.text_relocations);
}

TEST(Elf, SaysWhatIsWrongWithAFile) {
  const ScratchFolder scratch;
  const auto problem_of = [&](const std::string& content) {
    write_file_atomic(scratch / "file", content);
    return read_elf(scratch / "file").problem;
  };
  const std::string whole = read_file("/proc/self/exe");
  EXPECT_THAT(problem_of(""), HasSubstr("not an ELF file"));
  EXPECT_THAT(problem_of("#!/bin/sh\n" + std::string(100, ' ')), HasSubstr("not an ELF file"));
  EXPECT_THAT(problem_of(whole.substr(0, sizeof(Elf64_Ehdr))), HasSubstr("truncated"));
  std::string other = whole;
  other[offsetof(Elf64_Ehdr, e_machine)] = EM_ARM;
  EXPECT_THAT(problem_of(other), HasSubstr("not a shared library for this machine"));
}

TEST(Elf, ReaderStaysWithinTheFile) {
  const std::string bytes = "0123456789";
  const ElfReader reader(bytes.size(), [&](uint64_t offset, uint64_t count) { return bytes.substr(offset, count); });
  EXPECT_TRUE(reader.get<uint64_t>(2));
  EXPECT_FALSE(reader.get<uint64_t>(3));
  EXPECT_FALSE(reader.get<uint64_t>(UINT64_MAX));
  EXPECT_EQ(reader.text(8), "89");
  EXPECT_EQ(reader.text(10), "");
}
