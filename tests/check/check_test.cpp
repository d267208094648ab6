// Good plugins pass every check; a file that is no plugin fails a check, and the tool itself does not fail.
#include "base/elf.h"
#include "workshop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <gmock/gmock.h>
#include <set>

namespace fvlm::check {
namespace {

using testing::HasSubstr;
using testing::UnorderedElementsAre;

Report check(const Job& job) {
  return check_plugin(job, supervision(no_hang));
}

const Entry* find(const Report& report, const std::string& name) {
  for (const Entry& entry : report.entries)
    if (entry.name == name) return &entry;
  return nullptr;
}

class GoodPlugin : public testing::TestWithParam<const char*> {};

TEST_P(GoodPlugin, PassesEveryCheck) {
  Job job;
  job.library = plugin(GetParam()).string();
  Report report = check(job);
  EXPECT_TRUE(report.passed()) << failures(report);
  EXPECT_GT(report.count(State::ok), 35u) << report.json().dump(1);
}

INSTANTIATE_TEST_SUITE_P(kinds, GoodPlugin,
                         testing::Values("attention", "loss", "optimizer", "packer", "quantizer", "kernels", "video",
                                         "attention_mutant", "loss_mutant", "kernels_mutant", "optimizer_mutant",
                                         "lion_mutant", "sgd_mutant", "packer_mutant", "quantizer_mutant",
                                         "process_mutant", "video_mutant"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Conformance, HasMoreThanSixtyDescribedChecks) {
  size_t rows = 0;
  for (const Table& table : tables()) {
    std::set<std::string> names;
    for (const Check& row : table.checks) {
      ++rows;
      EXPECT_TRUE(names.insert(row.name).second) << table.family << "." << row.name << " is there twice";
      EXPECT_FALSE(row.proves.empty()) << row.name;
    }
  }
  EXPECT_GT(rows, 60u);
}

TEST(Conformance, RowsDependOnEarlierRows) {
  for (const Table& table : tables()) {
    std::vector<std::string> before;
    for (const Check& row : table.checks) {
      std::string need;
      std::istringstream needs(row.needs);
      while (std::getline(needs, need, ',')) {
        if (need == "*" || need == "pure" || need == "deterministic") continue;
        const bool open = need.ends_with('*');
        const std::string start = open ? need.substr(0, need.size() - 1) : need;
        bool found = false;
        for (const auto& name : before) found = found || (open ? name.starts_with(start) : name == start);
        EXPECT_TRUE(found) << table.family << "." << row.name << " builds on '" << need << "', which is not before it";
      }
      before.push_back(row.name);
    }
  }
}

TEST(Conformance, TextFileIsNoLibrary) {
  auto path = std::filesystem::temp_directory_path() / "fvlm_no_library.so";
  std::ofstream(path) << "int main() {}\n";
  Job job;
  job.library = path.string();
  Report report = check(job);
  const Entry* entry = find(report, "library.is_library");
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->outcome.state, State::failed);
  EXPECT_THAT(entry->outcome.text, HasSubstr("not an ELF file"));
  EXPECT_EQ(report.count(State::failed), 1u) << failures(report);
  std::filesystem::remove(path);
}

TEST(Conformance, TruncatedLibraryFailsACheck) {
  const std::string whole = read_file(plugin("attention"));
  auto path = std::filesystem::temp_directory_path() / "fvlm_truncated.so";
  // A quarter of it ends before what is loaded does, with a sanitizer's notes for debuggers behind that, too.
  for (size_t size : {size_t{5}, size_t{40}, size_t{64}, size_t{300}, whole.size() / 4}) {
    std::ofstream(path, std::ios::binary) << whole.substr(0, size);
    Job job;
    job.library = path.string();
    Report report = check(job);
    EXPECT_GE(report.count(State::failed), 1u) << size << " bytes of it pass";
    EXPECT_EQ(report.kinds.size(), 0u);
  }
  std::filesystem::remove(path);
}

TEST(Conformance, SelectsSeveralRows) {
  Job job;
  job.library = plugin("packer").string();
  job.only = "packer.capacity,,packer.creates";
  std::vector<std::string> names;
  for (const Entry& entry : check(job).entries) names.push_back(entry.name);
  EXPECT_THAT(names, UnorderedElementsAre("library.opens", "library.enters", "packer.creates", "packer.capacity"));
}

TEST(Conformance, QuickLeavesOutThoroughRowsOnly) {
  Job job;
  job.library = plugin("packer").string();
  const auto names = [&] {
    std::set<std::string> all;
    for (const Entry& entry : check(job).entries) all.insert(entry.name);
    return all;
  };
  const std::set<std::string> whole = names();
  job.quick = true;
  const std::set<std::string> quick = names();
  std::set<std::string> left_out;
  std::set_difference(whole.begin(), whole.end(), quick.begin(), quick.end(), std::inserter(left_out, left_out.end()));
  std::set<std::string> thorough;
  for (const char* family : {"library", "packer"})
    for (const Check& row : table_of(family).checks)
      if (row.extent == Extent::thorough) thorough.insert(std::string(family) + "." + row.name);
  EXPECT_FALSE(thorough.empty());
  EXPECT_EQ(left_out, thorough);
}

TEST(Conformance, FindsDisagreeingManifest) {
  Job job;
  job.library = plugin("packer").string();
  job.only = "library.manifest";
  job.declared = DeclaredPlugin{"packer", "1.0", {"fvlm.packer/1"}, "1.0"};
  EXPECT_TRUE(check(job).passed());
  job.declared = DeclaredPlugin{"packer", "2.0", {"fvlm.packer/1"}, "1.0"};
  EXPECT_THAT(failures(check(job)), HasSubstr("version = \"2.0\", the library \"1.0\""));
  job.declared = DeclaredPlugin{"packer", "1.0", {"fvlm.packer/1"}, "1.1"};
  EXPECT_THAT(failures(check(job)), HasSubstr("abi = \"1.1\", the library was compiled with 1.0"));
  job.declared = DeclaredPlugin{"packer", "1.0", {"fvlm.packer/1", "fvlm.loss/1"}, "1.0"};
  EXPECT_THAT(failures(check(job)), HasSubstr("declares fvlm.loss/1"));
}

TEST(Conformance, CrashNamesItsSignalAndLaterRowsRun) {
  Job job;
  job.library = plugin("attention_crashes_at_zero_rows").string();
  job.only = "attention.zero_rows,attention.many_segments";
  Report report = check(job);
  const Entry* crashed = find(report, "attention.zero_rows");
  ASSERT_NE(crashed, nullptr);
  EXPECT_EQ(crashed->outcome.state, State::failed);
  EXPECT_THAT(crashed->outcome.text, HasSubstr("crashed"));
  const Entry* next = find(report, "attention.many_segments");
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(next->outcome.state, State::ok) << next->outcome.text;
}

TEST(Conformance, ReportIsOneJsonDocument) {
  Job job;
  job.library = plugin("packer").string();
  job.only = "packer.capacity";
  auto json = check(job).json();
  EXPECT_EQ(json["plugin"], "packer");
  EXPECT_EQ(json["kinds"], std::vector<std::string>{"fvlm.packer/1"});
  EXPECT_TRUE(json["passed"]);
  bool found = false;
  for (const auto& row : json["checks"]) found = found || (row["name"] == "packer.capacity" && row["result"] == "ok");
  EXPECT_TRUE(found) << json.dump(1);
}

TEST(Conformance, BenchmarksMeasureAgainstTheReference) {
  Job job;
  job.library = plugin("packer").string();
  job.only = "bench";
  job.bench = job.quick = true;
  Report report = check(job);
  EXPECT_TRUE(report.passed()) << failures(report);
  ASSERT_FALSE(report.figures.empty());
  EXPECT_THAT(report.figures[0].name, HasSubstr("fill of 4,096-token packs"));
  EXPECT_GT(report.figures[0].plugin, 50) << "per cent";
  EXPECT_LE(report.figures[0].plugin, 100) << "per cent";
}

TEST(Elf, ReadsExportsAndNeededLibraries) {
  ElfFile file = read_elf(plugin("attention"));
  EXPECT_EQ(file.problem, "");
  EXPECT_EQ(file.exports, std::vector<std::string>{"fvlm_plugin_entry_v1"});
  EXPECT_THAT(file.needed, testing::Contains("libc.so.6"));
  EXPECT_FALSE(file.executable_stack);
  EXPECT_TRUE(read_elf(plugin("attention_executable_stack")).executable_stack);
}

} // namespace
} // namespace fvlm::check
