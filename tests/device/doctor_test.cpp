// The messages for a machine whose driver or GPU cannot be used, which are the same from `doctor` as from training.
#include "../shell.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <dlfcn.h>
#include <gmock/gmock.h>

using namespace fvlm;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

namespace {

struct Machine : testing::Test {
  // `driver`: the folder of the fake driver; `facts`: environment variables that configure it.
  test::Ran engine(const std::string& arguments, const std::string& driver, const std::string& facts = "") {
    const std::string command =
        fmt::format("env -u CUDA_VISIBLE_DEVICES FVLM_CACHE='{0}/cache' "
                    "LD_LIBRARY_PATH='{1}/{2}'\"${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\" {3} '{4}' {5}",
                    scratch.path().string(), FVLM_DRIVERS, driver, facts, FVLM_ENGINE, arguments);
    return test::shell(command);
  }

  nlohmann::json doctor(const std::string& driver, const std::string& facts = "") {
    const test::Ran run = engine("doctor --json", driver, facts);
    const bool has_torch = facts.find("FVLM_TORCH=/nowhere") == std::string::npos;
    EXPECT_EQ(run.code, has_torch ? 0 : 6) << run.err;
    return nlohmann::json::parse(run.out);
  }

  // `train` and `bench` stop with the message that doctor reports.
  void expect_refused(const std::string& subject, const std::string& words, const std::string& advice,
                      const std::string& driver, const std::string& facts = "") {
    const auto finding = doctor(driver, facts).at(subject);
    EXPECT_EQ(finding.at("ok"), false) << finding;
    EXPECT_THAT(finding.at("text").get<std::string>(), HasSubstr(words)) << facts;
    EXPECT_THAT(finding.at("advice").get<std::string>(), HasSubstr(advice)) << facts;
    for (const std::string& verb :
         {"train '" FVLM_RECIPES "/quickstart.lua' --run-dir '" + (scratch / "run").string() + "'",
          std::string("bench profile --configurations tiny:1")}) {
      const test::Ran run = engine(verb + " --device cuda", driver, facts);
      EXPECT_EQ(run.code, 6) << verb << run.err;
      EXPECT_THAT(run.err, AllOf(HasSubstr(words), HasSubstr(advice), Not(HasSubstr("frame #")), Not(HasSubstr("c10"))))
          << verb << facts;
    }
  }

  void write_manifest(const std::string& more = "") {
    const auto folder = scratch / "plugins" / "theirs";
    std::filesystem::create_directories(folder);
    write_file_atomic(folder / "plugin.toml", fmt::format(R"(name = "theirs"
version = "1"
description = "for one GPU"
license = "MIT"
abi = "1.0"
kinds = ["fvlm.attention/1"]
devices = ["cuda"]
library = "theirs.so"
{}
)",
                                                          more));
  }
  // None of them can be opened.
  std::string told_of_plugins(const std::string& facts) {
    const auto found =
        doctor("driver", fmt::format("{} FVLM_PLUGIN_PATH='{}'", facts, (scratch / "plugins").string())).at("plugins");
    EXPECT_EQ(found.at("ok"), false);
    return found.at("text");
  }

  ScratchFolder scratch;
};

TEST_F(Machine, WithoutADriver) {
  if (dlopen("libcuda.so.1", RTLD_NOW)) GTEST_SKIP() << "this machine has one";
  expect_refused("CUDA", "no NVIDIA driver: libcuda.so.1 was not found", "driver 580 or newer", "none");
  const test::Ran run = engine("bench profile --configurations tiny:1 --repeat 1 --warmup 1", "none");
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.err, Not(HasSubstr("using the CPU"))) << "nobody wonders why";
}

TEST_F(Machine, SaysWhatRunsAsTheReferenceOnACpu) {
  const auto all = doctor("none");
  EXPECT_EQ(all.at("CPU").at("ok"), true) << all;
  EXPECT_THAT(all.at("CPU").at("text").get<std::string>(), AllOf(HasSubstr("kernels-cpu"), HasSubstr(": ready")));
  EXPECT_EQ(all.at("CPU").at("advice"), "");
  write_manifest();
  const auto file = scratch / "plugins" / "theirs" / "plugin.toml";
  std::string manifest = read_file(file);
  write_file_atomic(file, manifest.replace(manifest.find("\"cuda\""), 6, "\"cpu\""));
  const auto found = doctor("none", fmt::format("FVLM_PLUGIN_PATH='{}'", (scratch / "plugins").string())).at("CPU");
  EXPECT_EQ(found.at("ok"), false);
  EXPECT_THAT(found.at("text").get<std::string>(), AllOf(HasSubstr(": ready; theirs: "), HasSubstr("theirs.so")));
  EXPECT_THAT(found.at("advice").get<std::string>(), HasSubstr("plugin list"));
}

TEST_F(Machine, SaysThatPluginsAreMissing) {
  std::filesystem::create_directories(scratch / "alone/bin");
  std::filesystem::copy_file(FVLM_ENGINE, scratch / "alone/bin/fvlm-engine");
  const test::Ran run = test::shell(
      fmt::format("FVLM_CACHE='{0}/cache' '{0}/alone/bin/fvlm-engine' doctor --json", scratch.path().string()));
  const auto all = nlohmann::json::parse(run.out);
  EXPECT_EQ(all.at("CPU").at("ok"), false);
  EXPECT_THAT(all.at("CPU").at("text").get<std::string>(), HasSubstr("no plugins: the reference runs instead"));
  EXPECT_EQ(all.at("video").at("ok"), false);
  EXPECT_THAT(all.at("video").at("text").get<std::string>(), HasSubstr("no plugin reads mp4 files"));
  EXPECT_THAT(all.at("video").at("advice").get<std::string>(), HasSubstr("FFmpeg"));
}

TEST_F(Machine, WithAnInvalidDriver) {
  expect_refused("CUDA", "it may be the toolkit's stub", "take the toolkit's stubs out", "stub");
  expect_refused("CUDA", "the toolkit's stub", "take the toolkit's stubs out", "driver", "FAKE_INIT=34 FAKE_DRIVER=0");
  expect_refused("CUDA", "the NVIDIA driver cannot be loaded", "driver 580", "damaged");
}

TEST_F(Machine, WithATooOldDriver) {
  expect_refused("CUDA", "the driver is too old: it supports CUDA 12.4, the engine needs 13.0", "driver 580 or newer",
                 "driver", "FAKE_DRIVER=12040");
}

TEST_F(Machine, WithADriverThatDoesNotStart) {
  expect_refused("CUDA", "different versions; cuInit returned 803", "restart the machine", "driver", "FAKE_INIT=803");
  expect_refused("CUDA", "cuInit returned 999", "nvidia-smi", "driver", "FAKE_INIT=999");
  expect_refused("CUDA", "cuInit returned 777", "nvidia-smi", "driver", "FAKE_INIT=777");
}

TEST_F(Machine, WithoutAVisibleGpu) {
  expect_refused("CUDA", "reports no GPU", "nvidia-smi -L", "driver", "FAKE_COUNT=0");
  expect_refused("CUDA", "reports no GPU", "nvidia-smi -L", "driver", "FAKE_INIT=100");
  expect_refused("CUDA", "CUDA_VISIBLE_DEVICES is '7'", "unset CUDA_VISIBLE_DEVICES", "driver",
                 "FAKE_INIT=100 CUDA_VISIBLE_DEVICES=7");
}

// Falling back to the CPU has to be reported.
TEST_F(Machine, ExplainsTheCpuWhenTheGpuIsUnusable) {
  const test::Ran run =
      engine("bench profile --configurations tiny:1 --repeat 1 --warmup 1", "driver", "FAKE_DRIVER=12040");
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.err, AllOf(HasSubstr("using the CPU: the driver is too old"), HasSubstr("driver 580")));
}

TEST_F(Machine, WithATooOldGpu) {
  expect_refused("cuda:0", "Fake GPU is sm_75, older than sm_80", "--device cpu", "driver", "FAKE_CAPABILITY=75");
}

TEST_F(Machine, WithAGpuThatOthersHold) {
  expect_refused("cuda:0", "has 512.0 MiB of 80.0 GiB free; in use by process 4242 with 78.0 GiB",
                 "CUDA_VISIBLE_DEVICES", "driver", "FAKE_FREE_MIB=512 FAKE_PROCESS=4242 FAKE_PROCESS_MIB=79872");
  expect_refused("cuda:0", "in use by processes that are not visible here", "wait", "driver", "FAKE_FREE_MIB=512");
  expect_refused("cuda:0", "is in exclusive compute mode and used by process 4242", "-c DEFAULT", "driver",
                 "FAKE_COMPUTE_MODE=3 FAKE_PROCESS=4242");
  expect_refused("cuda:0", "compute mode 'prohibited'", "-c DEFAULT", "driver", "FAKE_COMPUTE_MODE=2");
}

TEST_F(Machine, WithAGpuThatOthersPartlyUse) {
  const auto finding = doctor("driver", "FAKE_FREE_MIB=20480 FAKE_PROCESS=7").at("cuda:0");
  EXPECT_EQ(finding.at("ok"), false);
  EXPECT_EQ(finding.at("text"), "Fake GPU has 20.0 GiB of 80.0 GiB free; in use by process 7");
  EXPECT_THAT(engine("doctor", "driver", "FAKE_FREE_MIB=20480").out, HasSubstr("busy cuda:0"));
}

TEST_F(Machine, WithAFreeGpu) {
  for (const char* facts : {"", "FAKE_COMPUTE_MODE=3", "FAKE_PROCESS=7", "FAKE_TOTAL_MIB=200000 FAKE_FREE_MIB=9",
                            "FAKE_MANAGEMENT=9 FAKE_FREE_MIB=9"}) {
    const auto finding = doctor("driver", facts).at("cuda:0");
    EXPECT_EQ(finding.at("ok"), true) << facts << finding;
    EXPECT_THAT(finding.at("text").get<std::string>(), HasSubstr("Fake GPU, sm_90, 80.0 GiB")) << facts;
  }
  EXPECT_EQ(doctor("driver").at("cuda:0").at("text"), "Fake GPU, sm_90, 80.0 GiB, 79.0 GiB free");
}

// The fake driver has only the functions that are called first.
TEST_F(Machine, WithADriverThatFailsMidway) {
  const test::Ran run = engine("bench profile --configurations tiny:1 --device cuda", "driver");
  EXPECT_EQ(run.code, 6) << run.err;
  EXPECT_THAT(run.err, AllOf(HasSubstr("error: "), Not(HasSubstr("defect")), Not(HasSubstr("frame #"))));
}

// The library does not exist, because only the manifest is read.
TEST_F(Machine, WithAGpuThatPluginsWereNotBuiltFor) {
  write_manifest("architectures = [\"sm_90a\"]");
  EXPECT_THAT(told_of_plugins("FAKE_CAPABILITY=80"),
              testing::ContainsRegex("theirs[^;]*: built for sm_90a; this machine has sm_80"));
}

// The library is not a plugin, but its dependencies are found.
TEST_F(Machine, WithCudaLibrariesOnlyBesideTorch) {
  write_manifest();
  std::filesystem::copy(FVLM_DRIVERS "/plugins/theirs/libtheirs.so", scratch / "plugins" / "theirs" / "theirs.so");
  EXPECT_THAT(told_of_plugins("FVLM_TORCH=/nowhere"), HasSubstr("libfvlm_brought.so: cannot open"));
  EXPECT_THAT(told_of_plugins("FVLM_TORCH='" FVLM_DRIVERS "/torch'"),
              AllOf(HasSubstr("theirs"), Not(HasSubstr("libfvlm_brought.so"))));
}

} // namespace
