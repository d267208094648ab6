// Broken libraries: each is refused with its own reason, and another plugin still works.
#include "workshop.h"

#include <elf.h>
#include <functional>
#include <gmock/gmock.h>
#include <set>
#include <sys/stat.h>

namespace fvlm::test {
namespace {

using testing::HasSubstr;

struct Broken {
  std::string name;
  std::string reason; // part of the refusal
  std::string kinds = R"(["fvlm.attention/1"])";
};

void PrintTo(const Broken& broken, std::ostream* out) {
  *out << broken.name;
}

class BrokenPlugin : public Workshop {
 protected:
  // Loads all plugins and returns the reason of the only refusal. The plugin "other" has to work.
  std::string refusal_beside_a_good_one(RegistryOptions settings) {
    ManifestText other;
    other.name = "other";
    lay("other", "other", other);
    Registry registry(std::move(settings));
    for (const FoundPlugin& plugin : registry.found()) registry.load(plugin.manifest.name);
    const LoadedPlugin* good = registry.load("other");
    EXPECT_TRUE(good && good->table<fvlm_attention_v1>());
    auto refusals = registry.refusals();
    EXPECT_EQ(refusals.size(), 1u);
    return refusals.empty() ? "" : refusals[0].reason;
  }
};

// Libraries that CMakeLists.txt builds, by name.
class BrokenLibrary : public BrokenPlugin, public testing::WithParamInterface<Broken> {};
const std::string kernels = R"(["fvlm.kernels/1"])", optimizer = R"(["fvlm.optimizer/1:sgd"])";

const Broken built[] = {
    {"wrong_symbol", "exports no symbol fvlm_plugin_entry_v1"},
    {"data_symbol", "fvlm_plugin_entry_v1 is data, not a function"},
    {"null_plugin", "fvlm_plugin_entry_v1() returned NULL"},
    {"misaligned_plugin", "fvlm_plugin is not aligned"},
    {"changing_plugin", "fvlm_plugin_entry_v1() returned a different pointer"},
    {"major_too_new", "the library was built for ABI 2.0"},
    {"major_too_old", "the library was built for ABI 0.0"},
    {"plugin_size_zero", "fvlm_plugin has struct_size 0"},
    {"plugin_size_small", "fvlm_plugin has struct_size 32, less than"},
    {"plugin_size_large", "fvlm_plugin has struct_size 4096, more than"},
    {"null_name", "its name is NULL"},
    {"other_name", "the library's name is 'simple', but its manifest says 'sample'"},
    {"null_version", "its version is NULL"},
    {"other_version", "the library's version is '0.9', but its manifest says '1.0'"},
    {"null_table_function", "its function table() is NULL"},
    {"no_table", "its manifest lists fvlm.attention/1, but the library has no table of it"},
    {"any_table", "table() returned a table for a kind that does not exist"},
    {"changing_table", "table(\"fvlm.attention/1\") returned a different pointer"},
    {"table_size_zero", "the table of fvlm.attention/1 has struct_size 0"},
    {"table_size_small", "the table of fvlm.attention/1 has struct_size 48, less than"},
    {"table_size_large", "the table of fvlm.attention/1 has struct_size 1000, more than"},
    {"null_create", "the table of fvlm.attention/1 has no create"},
    {"null_destroy", "the table of fvlm.attention/1 has no destroy"},
    {"null_supports", "the table of fvlm.attention/1 has no supports"},
    {"null_requirements", "the table of fvlm.attention/1 has no requirements"},
    {"null_forward", "the table of fvlm.attention/1 has no forward"},
    {"null_backward", "the table of fvlm.attention/1 has no backward"},
    {"score_negative", "supports() returned the score -5"},
    {"score_absurd", "supports() returned the score 2000000000"},
    {"endless_reason", "supports() returned an unterminated reason"},
    {"supports_overrun", "supports() wrote past the end of fvlm_support"},
    {"kernels_without_backward", "has rmsnorm_forward but no rmsnorm_backward", kernels},
    {"kernels_without_forward", "has rmsnorm_backward but no rmsnorm_forward", kernels},
    {"kernels_empty", "the table of fvlm.kernels/1 has no operations", kernels},
    {"kernels_lying", "supports() accepts layernorm, but layernorm_forward is NULL", kernels},
    {"kernels_half_linear", "has linear_forward but no linear_weight_gradient", kernels},
    {"optimizer_other_algorithm", "its algorithm is 'lion', not the kind's 'sgd'", optimizer},
    {"optimizer_null_algorithm", "algorithm is NULL", optimizer},
    {"optimizer_null_hyperparameters", "hyperparameters is NULL while hyperparameter_count is 2", optimizer},
    {"optimizer_no_hyperparameters", "hyperparameter_count is 0", optimizer},
    {"optimizer_first_is_not_lr", "the first hyperparameter is 'rate', not 'lr'", optimizer},
    {"optimizer_nameless", "hyperparameters[0] has no name", optimizer},
    {"optimizer_out_of_bounds", "the default 20 of hyperparameter 'lr' is out of its bounds 0 to 10", optimizer},
    {"optimizer_many_states", "states() returned 9", optimizer},
    {"optimizer_negative_states", "states() returned -1", optimizer},
    {"optimizer_nameless_state", "states() left states[0] without a name", optimizer},
    {"optimizer_without_step", "the table of fvlm.optimizer/1:sgd has no step", optimizer},
    {"constructor_exits", "it ended the process with exit code 3 in its constructors"},
    {"constructor_aborts", "it crashed with SIGABRT in its constructors"},
    {"constructor_crashes", "it crashed with SIGSEGV in its constructors"},
    {"constructor_throws", "it crashed with SIGABRT in its constructors (its output: terminate called after "
                           "throwing an instance of 'std::runtime_error' | what():  no licence found)"},
    {"entry_exits", "it ended the process with exit code 3 in fvlm_plugin_entry_v1()"},
    {"entry_aborts", "it crashed with SIGABRT in fvlm_plugin_entry_v1()"},
    {"entry_crashes", "it crashed with SIGSEGV in fvlm_plugin_entry_v1()"},
    {"entry_throws", "fvlm_plugin_entry_v1() threw std::runtime_error: no licence found"},
    {"entry_throws_int", "fvlm_plugin_entry_v1() threw a int"},
    {"entry_panics", "it crashed with SIGABRT in fvlm_plugin_entry_v1() (its output: thread '<unnamed>' panicked at "
                     "src/lib.rs:10:5: | index out of bounds: the len is 3 | note: run with `RUST_BACKTRACE=1` | fatal "
                     "runtime error: failed to initiate panic)"},
    {"entry_leaves_children", "it crashed with SIGABRT in fvlm_plugin_entry_v1()"},
    {"table_exits", "it ended the process with exit code 3 in table("},
    {"table_aborts", "it crashed with SIGABRT in table("},
    {"table_crashes", "it crashed with SIGSEGV in table("},
    {"table_throws", "table() threw std::runtime_error: no licence found"},
    {"supports_exits", "it ended the process with exit code 3 in supports() of fvlm.attention/1"},
    {"supports_aborts", "it crashed with SIGABRT in supports() of fvlm.attention/1"},
    {"supports_crashes", "it crashed with SIGSEGV in supports() of fvlm.attention/1"},
    {"supports_throws", "supports() threw std::runtime_error: no licence found"},
    {"destructor_exits", "it ended the process with exit code 3 in the exit of the process, after all calls"},
    {"destructor_crashes", "it crashed with SIGSEGV in the exit of the process, after all calls"},
    {"undefined_symbol", "it cannot be loaded: undefined symbol: fvlm_test_nowhere"},
    {"missing_dependency", "it cannot be loaded: dependency.so: cannot open shared object file"},
};

TEST_P(BrokenLibrary, IsRefusedWithItsOwnReason) {
  ManifestText manifest;
  manifest.kinds = GetParam().kinds;
  lay("broken", GetParam().name, manifest);
  EXPECT_THAT(refusal_beside_a_good_one(options()), HasSubstr(GetParam().reason));
}
INSTANTIATE_TEST_SUITE_P(built, BrokenLibrary, testing::ValuesIn(built), testing::PrintToStringParamName());

// Only the time limit distinguishes a library that hangs from a slow one, so it is short here.
class HangingLibrary : public BrokenPlugin, public testing::WithParamInterface<Broken> {};
const Broken hanging[] = {
    {"constructor_hangs", "it did not return from its constructors within 10 s"},
    {"entry_hangs", "it did not return from fvlm_plugin_entry_v1() within 10 s"},
};
TEST_P(HangingLibrary, IsRefusedAfterItsTimeLimit) {
  lay("broken", GetParam().name);
  auto settings = options();
  settings.load.probe.limit = std::chrono::seconds(10); // far above what the good one beside it needs
  EXPECT_THAT(refusal_beside_a_good_one(settings), HasSubstr(GetParam().reason));
}
INSTANTIATE_TEST_SUITE_P(built, HangingLibrary, testing::ValuesIn(hanging), testing::PrintToStringParamName());

// A longjmp into a frame that has returned is undefined behaviour, but it must not affect this process.
TEST_F(BrokenPlugin, ThatJumpsOutOfItsEntryIsRefused) {
  lay("broken", "entry_longjmps");
  EXPECT_THAT(refusal_beside_a_good_one(options()), HasSubstr("in fvlm_plugin_entry_v1()"));
}

TEST_F(BrokenPlugin, ThatFindsTheEntryOfAnotherLibraryIsRefused) {
  fs::path home = lay("broken", "borrowed_symbol");
  fs::copy_file(library("dependency"), home / "dependency.so");
  EXPECT_THAT(refusal_beside_a_good_one(options()), HasSubstr("exports no fvlm_plugin_entry_v1 of its own"));
}

// Damaged files, wrong permissions, and wrong places.
struct Mangled {
  std::string name;
  std::string reason;
  std::function<void(const fs::path& home)> mangle;
};
void PrintTo(const Mangled& mangled, std::ostream* out) {
  *out << mangled.name;
}

void patch(const fs::path& home, size_t offset, const std::string& bytes) {
  std::fstream file(home / "plugin.so", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(offset));
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

void replace(const fs::path& file, const std::string& content) {
  fs::remove(file);
  std::ofstream(file) << content;
  fs::permissions(file, fs::perms(0644));
}

void manifest(const fs::path& home, const std::function<void(ManifestText&)>& change) {
  ManifestText text;
  change(text);
  replace(home / "plugin.toml", text.text());
}

void mode(const fs::path& path, mode_t bits) {
  ASSERT_EQ(chmod(path.c_str(), bits), 0) << path;
}

// Changes the library's last segment of this type and these flags, whichever they are where 0 is given.
template <class Change>
void change_segment(const fs::path& home, Elf64_Word type, Elf64_Word flags, Change change) {
  Elf64_Ehdr header;
  std::ifstream file(home / "plugin.so", std::ios::binary);
  file.read(reinterpret_cast<char*>(&header), sizeof header);
  for (int i = header.e_phnum - 1; i >= 0; --i) {
    Elf64_Phdr segment;
    const size_t offset = header.e_phoff + static_cast<size_t>(i) * sizeof segment;
    file.seekg(static_cast<std::streamoff>(offset));
    file.read(reinterpret_cast<char*>(&segment), sizeof segment);
    if (segment.p_type != type || (flags && segment.p_flags != flags)) continue;
    change(segment);
    patch(home, offset, {reinterpret_cast<const char*>(&segment), sizeof segment});
    return;
  }
  ADD_FAILURE() << "the library has no segment of type " << type;
}

void move_segment(const fs::path& home, Elf64_Word type, Elf64_Addr address) {
  change_segment(home, type, 0, [&](Elf64_Phdr& segment) { segment.p_vaddr = address; });
}

const Mangled mangled[] = {
    {"empty", "an empty file", [](const fs::path& home) { replace(home / "plugin.so", ""); }},
    {"ten_bytes", "it has only 10 bytes", [](const fs::path& home) { fs::resize_file(home / "plugin.so", 10); }},
    {"cut_in_its_header", "its headers end after that",
     [](const fs::path& home) { fs::resize_file(home / "plugin.so", 40); }},
    {"cut_after_its_header", "its program headers end after that",
     [](const fs::path& home) { fs::resize_file(home / "plugin.so", 64); }},
    {"cut_in_its_code", "its segments end after that",
     [](const fs::path& home) { fs::resize_file(home / "plugin.so", 1000); }},
    {"cut_near_its_end", "its section headers end after that",
     [](const fs::path& home) { fs::resize_file(home / "plugin.so", fs::file_size(home / "plugin.so") - 1); }},
    {"relro_elsewhere", "its RELRO segment, ",
     [](const fs::path& home) { move_segment(home, PT_GNU_RELRO, 0x40000000); }},
    {"relro_in_code", "is not within a writable LOAD segment",
     [](const fs::path& home) { move_segment(home, PT_GNU_RELRO, 0); }},
    // Covers variables that are written as the process exits.
    {"relro_over_variables", "it crashed with SIGSEGV in the exit of the process, after all calls",
     [](const fs::path& home) {
       Elf64_Phdr variables{};
       change_segment(home, PT_LOAD, PF_R | PF_W, [&](const Elf64_Phdr& segment) { variables = segment; });
       change_segment(home, PT_GNU_RELRO, 0, [&](Elf64_Phdr& segment) {
         const Elf64_Addr end = variables.p_vaddr + variables.p_memsz, page = 0x1000;
         segment.p_vaddr = variables.p_vaddr;
         segment.p_memsz = (end + page - 1) / page * page - variables.p_vaddr;
       });
     }},
    {"code_without_its_end", "its LOAD segment 1 is read-only and ends before its memory",
     [](const fs::path& home) {
       change_segment(home, PT_LOAD, PF_R | PF_X, [](Elf64_Phdr& segment) { --segment.p_filesz; });
     }},
    {"dynamic_elsewhere", "its DYNAMIC segment, ",
     [](const fs::path& home) { move_segment(home, PT_DYNAMIC, 0x40000000); }},
    {"tls_elsewhere", "its TLS segment, 4 bytes at address 0x40000000, is not within a LOAD segment",
     [](const fs::path& home) { move_segment(home, PT_TLS, 0x40000000); }},
    {"text", "not an ELF file (", [](const fs::path& home) { replace(home / "plugin.so", std::string(1000, 'x')); }},
    {"for_another_processor", "built for riscv; this machine is",
     [](const fs::path& home) {
       patch(home, offsetof(Elf64_Ehdr, e_machine), {static_cast<char>(EM_RISCV), 0});
     }},
    {"of_32_bits", "a 32-bit library", [](const fs::path& home) { patch(home, EI_CLASS, {ELFCLASS32}); }},
    {"big_endian", "a big-endian library", [](const fs::path& home) { patch(home, EI_DATA, {ELFDATA2MSB}); }},
    {"object_file", "an object file, not a shared library",
     [](const fs::path& home) {
       patch(home, offsetof(Elf64_Ehdr, e_type), {ET_REL, 0});
     }},
    {"missing", "no such file", [](const fs::path& home) { fs::remove(home / "plugin.so"); }},
    {"a_folder", "a folder, not a file",
     [](const fs::path& home) {
       fs::remove(home / "plugin.so");
       fs::create_directory(home / "plugin.so");
       fs::permissions(home / "plugin.so", fs::perms(0755));
     }},
    {"a_pipe", "a named pipe, not a file",
     [](const fs::path& home) {
       fs::remove(home / "plugin.so");
       ASSERT_EQ(mkfifo((home / "plugin.so").c_str(), 0644), 0);
       mode(home / "plugin.so", 0644);
     }},
    {"dangling_symlink", "a dangling symlink",
     [](const fs::path& home) {
       fs::remove(home / "plugin.so");
       fs::create_symlink("nowhere.so", home / "plugin.so");
     }},
    {"symlink_to_itself", "a dangling symlink",
     [](const fs::path& home) {
       fs::remove(home / "plugin.so");
       fs::create_symlink("plugin.so", home / "plugin.so");
     }},
    {"symlink_to_an_open_place", "a world-writable folder (mode 0777)",
     [](const fs::path& home) {
       fs::path open = home / ".." / ".." / "open";
       fs::create_directory(open);
       mode(open, 0777);
       fs::rename(home / "plugin.so", open / "plugin.so");
       fs::create_symlink(open / "plugin.so", home / "plugin.so");
     }},
    {"symlink_to_a_sticky_place", "a world-writable folder (mode 1777)",
     [](const fs::path& home) {
       fs::path open = home / ".." / ".." / "open";
       fs::create_directory(open);
       mode(open, 01777);
       fs::rename(home / "plugin.so", open / "plugin.so");
       fs::create_symlink(open / "plugin.so", home / "plugin.so");
     }},
    {"world_writable", "a world-writable file (mode 0757)",
     [](const fs::path& home) { mode(home / "plugin.so", 0757); }},
    {"group_writable", "a group-writable file (mode 0775)",
     [](const fs::path& home) { mode(home / "plugin.so", 0775); }},
    {"in_a_group_writable_folder", "a group-writable folder (mode 0775)",
     [](const fs::path& home) { mode(home, 0775); }},
    {"in_a_sticky_folder", "a world-writable folder (mode 1777)", [](const fs::path& home) { mode(home, 01777); }},
    {"with_a_writable_manifest", "plugin.toml: a world-writable file",
     [](const fs::path& home) { mode(home / "plugin.toml", 0666); }},
    {"manifest_missing", "no plugin.toml next to plugin.so",
     [](const fs::path& home) { fs::remove(home / "plugin.toml"); }},
    {"manifest_is_a_pipe", "a named pipe, not a file",
     [](const fs::path& home) {
       fs::remove(home / "plugin.toml");
       ASSERT_EQ(mkfifo((home / "plugin.toml").c_str(), 0644), 0);
     }},
    {"manifest_malformed", "plugin.toml:2: ",
     [](const fs::path& home) { replace(home / "plugin.toml", "name = \"sample\"\nversion = = 1\n"); }},
    {"manifest_with_an_unknown_key", "unknown key 'licence' (did you mean 'license'?)",
     [](const fs::path& home) { manifest(home, [](auto& text) { text.more = "licence = \"MIT\"\n"; }); }},
    {"manifest_with_a_path", "library: '../plugin.so' is a path",
     [](const fs::path& home) { manifest(home, [](auto& text) { text.library = "../plugin.so"; }); }},
    {"manifest_of_another_major", "built for ABI 2.0; this engine supports 1.0",
     [](const fs::path& home) { manifest(home, [](auto& text) { text.abi = "2.0"; }); }},
    {"manifest_without_kinds", "kinds: is empty",
     [](const fs::path& home) { manifest(home, [](auto& text) { text.kinds = "[]"; }); }},
    {"manifest_of_an_unknown_revision", "this engine supports none of: fvlm.attention/9",
     [](const fs::path& home) { manifest(home, [](auto& text) { text.kinds = R"(["fvlm.attention/9"])"; }); }},
    {"manifest_for_cuda", "needs a CUDA device: no NVIDIA driver",
     [](const fs::path& home) { manifest(home, [](auto& text) { text.devices = R"(["cuda"])"; }); }},
    {"of_a_taken_name", "a plugin of this name was already found",
     [](const fs::path& home) {
       fs::path first = home / ".." / "a_first_one";
       fs::copy(home, first, fs::copy_options::recursive);
     }},
};

class MangledPlugin : public BrokenPlugin, public testing::WithParamInterface<Mangled> {};

TEST_P(MangledPlugin, IsRefusedWithItsOwnReason) {
  fs::path home = lay("broken", "sample");
  GetParam().mangle(home);
  EXPECT_THAT(refusal_beside_a_good_one(options()), HasSubstr(GetParam().reason));
}
INSTANTIATE_TEST_SUITE_P(made, MangledPlugin, testing::ValuesIn(mangled), testing::PrintToStringParamName());

TEST_F(BrokenPlugin, BelowAWorldWritableFolderIsRefused) {
  fs::path outer = folder("outer");
  folder("outer/plugins");
  lay("broken", "sample", {}, "outer/plugins");
  mode(outer, 0777);
  auto settings = options();
  settings.directories.push_back(outer / "plugins");
  EXPECT_THAT(refusal_beside_a_good_one(settings), HasSubstr("a world-writable folder (mode 0777)"));
}

TEST(BrokenPlugins, HaveMoreThanFortyDistinctReasons) {
  std::set<std::string> reasons;
  for (const auto& one : built) reasons.insert(one.reason);
  for (const auto& one : mangled) reasons.insert(one.reason);
  EXPECT_GE(reasons.size(), 90u);
}

} // namespace
} // namespace fvlm::test
