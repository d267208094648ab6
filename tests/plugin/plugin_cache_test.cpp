// What plugins keep between runs: hits, misses, and files that are damaged or cannot be written.
#include "base/file.h"
#include "base/new_file.h"
#include "base/scratch_folder.h"
#include "plugin/host.h"

#include <cstdlib>
#include <functional>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

namespace fvlm::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr fvlm_device cpu{FVLM_CPU, 0};

struct PluginCache : testing::Test {
  PluginCache() { setenv("FVLM_CACHE", (scratch / "cache").c_str(), 1); }

  static const fvlm_caching_host& host(const char* plugin, const char* identity) {
    const fvlm_host* host = host_for(plugin);
    identify_plugin(plugin, identity);
    EXPECT_NE(fvlm_cache_of(host), nullptr);
    return *fvlm_cache_of(host);
  }
  static void store(const fvlm_caching_host& host, const char* key, int64_t value) {
    host.cache_store(&host.host, cpu, key, &value, sizeof value);
  }
  // -1: there is none.
  static int64_t load(const fvlm_caching_host& host, const char* key) {
    int64_t value = -1;
    return host.cache_load(&host.host, cpu, key, &value, sizeof value) != 0 ? value : -1;
  }
  std::vector<fs::path> files() const {
    std::vector<fs::path> all;
    for (const auto& entry : fs::directory_iterator(scratch / "cache" / "measured")) all.push_back(entry.path());
    return all;
  }

  ScratchFolder scratch;
};

TEST_F(PluginCache, AnotherProcessFindsWhatOneKept) {
  if (fork() == 0) {
    store(host("p", "1"), "rows 8", 42);
    _exit(0);
  }
  int status = 1;
  wait(&status);
  ASSERT_EQ(status, 0);
  EXPECT_EQ(load(host("p", "1"), "rows 8"), 42);
  EXPECT_EQ(load(host("p", "1"), "rows 9"), -1);
  EXPECT_EQ(load(host("other", "1"), "rows 8"), -1);
  EXPECT_EQ(load(host("p", "2"), "rows 8"), -1); // another file of that name
  EXPECT_EQ(load(host("p", "1"), "rows 8"), 42);
}

TEST_F(PluginCache, NothingIsKeptOfAPluginWithoutAFile) {
  store(host("p", ""), "rows 8", 42);
  EXPECT_EQ(load(host("p", ""), "rows 8"), -1);
  EXPECT_FALSE(fs::exists(scratch / "cache" / "measured"));
}

TEST_F(PluginCache, AValueOfAnotherSizeIsNone) {
  const fvlm_caching_host& p = host("p", "1");
  store(p, "rows 8", 42);
  int32_t value = 0;
  EXPECT_EQ(p.cache_load(&p.host, cpu, "rows 8", &value, sizeof value), 0);
  const std::vector<char> large(FVLM_MAX_CACHED + 1);
  p.cache_store(&p.host, cpu, "large", large.data(), large.size());
  EXPECT_EQ(files().size(), 1U);
}

// In a process of its own, since a process warns once.
TEST_F(PluginCache, InvalidFilesAreReportedOnceAndReplaced) {
  store(host("p", "1"), "rows 8", 42);
  const fs::path file = files().at(0);
  const std::string good = read_file(file);
  EXPECT_EXIT(
      {
        for (const std::string& content : {std::string(), std::string("[1]"), good.substr(0, good.size() / 2)}) {
          write_file_atomic(file, content);
          if (load(host("p", "1"), "rows 8") != -1) _exit(1);
        }
        store(host("p", "1"), "rows 8", 43);
        _exit(load(host("p", "1"), "rows 8") == 43 ? 0 : 2);
      },
      testing::ExitedWithCode(0), "^[^\n]*measured again\n$");
  EXPECT_EQ(load(host("p", "1"), "rows 8"), 43);
  std::string damaged = read_file(file);
  damaged.replace(damaged.find("2b00"), 2, "zz"); // 43
  write_file_atomic(file, damaged);
  EXPECT_EQ(load(host("p", "1"), "rows 8"), -1);
}

} // namespace
} // namespace fvlm::test
