// The cache of measured times: hits, misses, and files that are damaged or cannot be written.
#include "base/file.h"
#include "base/scratch_folder.h"
#include "ops/timing_cache.h"
#include "tools.h"

#include <ATen/Parallel.h>

#include <fstream>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace fvlm;
using namespace fvlm::ops;
using testing::HasSubstr;
using testing::IsEmpty;
namespace fs = std::filesystem;

namespace {

fvlm_kernels_query rows_of(int64_t rows) {
  fvlm_kernels_query query{};
  query.op = FVLM_OP_RMSNORM;
  query.dtype = query.gradient_dtype = abi_dtype(at::kFloat);
  query.rows = rows;
  query.width = 6;
  query.epsilon = 1e-5f;
  return query;
}

struct TimesOnDisk : testing::Test {
  TimesOnDisk() {
    setenv("FVLM_CACHE", (scratch / "cache").c_str(), 1);
    registry.add_static(reference_manifest(), [] { return &reference_entry; });
  }

  // With a new object, as in a new process.
  Measurement ask(const fvlm_kernels_query& query, const LoadedPlugin* plugin = nullptr, uint32_t flags = 0) {
    Candidate<fvlm_kernels_v1> candidate = registry.candidates<fvlm_kernels_v1>().front();
    if (plugin) candidate.plugin = plugin;
    return TimingCache(at::kCPU).of(candidate, query, flags);
  }
  LoadedPlugin reference() { return *registry.load("reference"); }

  std::vector<fs::path> files() const {
    std::vector<fs::path> all;
    for (const auto& entry : fs::directory_iterator(folder)) all.push_back(entry.path());
    return all;
  }
  std::string log_of(const std::function<void()>& work) {
    testing::internal::CaptureStderr();
    work();
    return testing::internal::GetCapturedStderr();
  }

  ScratchFolder scratch;
  const fs::path folder = scratch / "cache" / "measured";
  Registry registry{RegistryOptions{}};
};

TEST_F(TimesOnDisk, AreFoundAgain) {
  const Measurement first = ask(rows_of(5)), second = ask(rows_of(5));
  EXPECT_GT(first.seconds, 0);
  EXPECT_FALSE(first.cached);
  EXPECT_TRUE(second.cached);
  EXPECT_EQ(second.seconds, first.seconds);
  EXPECT_EQ(files().size(), 1u);
}

TEST_F(TimesOnDisk, DependOnQueryFlagsAndThreads) {
  ask(rows_of(5));
  std::vector<fvlm_kernels_query> others(7, rows_of(5));
  others[0].rows = 6;
  others[1].width = 7;
  others[2].dtype = abi_dtype(at::kBFloat16);
  others[3].dtype = others[3].gradient_dtype = abi_dtype(at::kBFloat16);
  others[4].options = FVLM_WITH_RESIDUAL;
  others[5].op = FVLM_OP_LAYERNORM;
  others[6].epsilon = 1e-6f;
  for (size_t i = 0; i < others.size(); ++i) EXPECT_FALSE(ask(others[i]).cached) << i;
  EXPECT_FALSE(ask(rows_of(5), nullptr, FVLM_DETERMINISTIC).cached);
  const int threads = at::get_num_threads();
  at::set_num_threads(threads + 1);
  EXPECT_FALSE(ask(rows_of(5)).cached);
  at::set_num_threads(threads);
  EXPECT_TRUE(ask(rows_of(5)).cached);
}

TEST_F(TimesOnDisk, DependOnThePluginsFile) {
  LoadedPlugin plugin = reference();
  plugin.sha256 = "1";
  EXPECT_FALSE(ask(rows_of(5), &plugin).cached);
  EXPECT_TRUE(ask(rows_of(5), &plugin).cached);
  plugin.sha256 = "2";
  EXPECT_FALSE(ask(rows_of(5), &plugin).cached);
  plugin.manifest.version = "another";
  EXPECT_FALSE(ask(rows_of(5), &plugin).cached);
  plugin.manifest.name = "twin"; // it stands beside
  EXPECT_FALSE(ask(rows_of(5), &plugin).cached);
  plugin.manifest.name = "reference";
  EXPECT_TRUE(ask(rows_of(5), &plugin).cached);
}

// A library without a known hash: a different file of the same name is a different plugin.
TEST_F(TimesOnDisk, DependOnTheFileOfAPluginWithoutAHash) {
  LoadedPlugin plugin = reference();
  plugin.library = scratch / "library.so";
  write_file_atomic(plugin.library, "one");
  EXPECT_FALSE(ask(rows_of(5), &plugin).cached);
  EXPECT_TRUE(ask(rows_of(5), &plugin).cached);
  write_file_atomic(plugin.library, "two");
  EXPECT_FALSE(ask(rows_of(5), &plugin).cached);
}

TEST_F(TimesOnDisk, InvalidFileIsReportedOnceAndRewritten) {
  ask(rows_of(5));
  const fs::path file = files().at(0);
  const std::string good = read_file(file);
  std::string other = good;
  other.replace(other.find("rows="), 6, "rows=7");
  for (const std::string& content :
       {std::string(), std::string("{\"question\""), std::string("[1]"), std::string("\xff\xfe"), other,
        good.substr(0, good.size() / 2), std::string(1 << 20, ' ')}) {
    write_file_atomic(file, content);
    const std::string log = log_of([&] {
      TimingCache times(at::kCPU);
      const auto candidate = registry.candidates<fvlm_kernels_v1>().front();
      EXPECT_FALSE(times.of(candidate, rows_of(5), 0).cached) << content.substr(0, 40);
    });
    EXPECT_THAT(log, HasSubstr(file.string()));
    EXPECT_EQ(log.find("measured again"), log.rfind("measured again")) << log;
    EXPECT_THAT(log_of([&] { EXPECT_TRUE(ask(rows_of(5)).cached); }), IsEmpty());
  }
}

// Valid JSON that is not a time is measured again without a warning.
TEST_F(TimesOnDisk, InvalidTimesAreMeasuredAgain) {
  ask(rows_of(5));
  const fs::path file = files().at(0);
  for (const char* seconds : {"-1", "0", "null", "\"fast\"", "{}"}) {
    auto document = nlohmann::json::parse(read_file(file));
    document["plugins"]["reference"]["seconds"] = nlohmann::json::parse(seconds);
    write_file_atomic(file, document.dump());
    EXPECT_FALSE(ask(rows_of(5)).cached) << seconds;
    EXPECT_TRUE(ask(rows_of(5)).cached) << seconds;
  }
}

TEST_F(TimesOnDisk, UnwritableFolderIsReportedOnce) {
  write_file_atomic(scratch / "cache", "a file in the way of the folder");
  const std::string log = log_of([&] {
    TimingCache times(at::kCPU);
    for (const int64_t rows : {5, 6, 7})
      EXPECT_FALSE(times.of(registry.candidates<fvlm_kernels_v1>().front(), rows_of(rows), 0).cached);
  });
  EXPECT_THAT(log, HasSubstr("measured again"));
  EXPECT_EQ(log.find("measured again"), log.rfind("measured again")) << log;
}

TEST_F(TimesOnDisk, FolderStaysSmall) {
  fs::create_directories(folder);
  for (int i = 0; i < 4096; ++i) std::ofstream(folder / std::to_string(i)).put('x');
  fs::last_write_time(folder / "7", fs::file_time_type::clock::now() + std::chrono::hours(1));
  ask(rows_of(5));
  EXPECT_EQ(files().size(), 2049u);
  EXPECT_TRUE(fs::exists(folder / "7")) << "the last written";
  EXPECT_TRUE(ask(rows_of(5)).cached);
}

TEST_F(TimesOnDisk, ConcurrentProcessesLeaveWholeFiles) {
  constexpr int processes = 4, questions = 20;
  std::vector<pid_t> children;
  for (int process = 0; process < processes; ++process) {
    const pid_t child = fork();
    if (child == 0) {
      LoadedPlugin plugin = reference();
      plugin.manifest.name = "twin-" + std::to_string(process);
      for (int question = 1; question <= questions; ++question) ask(rows_of(question), &plugin);
      _exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  ASSERT_EQ(files().size(), static_cast<size_t>(questions)) << "nothing half written stays";
  for (const fs::path& file : files()) {
    const auto document = nlohmann::json::parse(read_file(file));
    EXPECT_THAT(document["question"].get<std::string>(), HasSubstr("op=rmsnorm"));
    EXPECT_GE(document["plugins"].size(), 1u);
    for (const auto& [name, time] : document["plugins"].items()) EXPECT_GT(time["seconds"].get<double>(), 0) << name;
  }
}

} // namespace
