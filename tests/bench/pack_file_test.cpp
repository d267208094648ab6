// Packs as batch files: what is written of one has every copy of its frames, and is read as it was.
#include "base/scratch_folder.h"
#include "bench/job.h"
#include "bench/pack_file.h"
#include "feed/model_samples.h"
#include "ops/reference.h"
#include "ops/reference_manifest.h"

#include <ATen/ops/equal.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

namespace fvlm::bench {
namespace {

TEST(PackFile, IsReadAsItWasWritten) {
  const c10::InferenceMode without_autograd;
  Registry registry{RegistryOptions{}};
  registry.add_static(ops::reference_manifest(), [] { return ops::reference_entry; });
  SyntheticModels models;
  TrainingSetting setting;
  setting.precision = plan::Precision::fp32;
  for (const char* name : {"tiny:3:stills", "tiny:3", "tiny-qwen2-vl:3"}) {
    std::vector<ImageGrid> grids;
    if (name == std::string("tiny-qwen2-vl:3")) grids.push_back({4, 8});
    const Job job = job_of(configuration_named(name), setting, 4, 9, "", models, registry, at::kCPU);
    const int64_t size = job.plan.model.image_size;
    const ScratchFolder scratch;
    write_pack(job.packs.front(), size, scratch.path() / "pack.safetensors");
    const PackOfFile read = read_pack(scratch.path() / "pack.safetensors", 1 << 20);
    EXPECT_EQ(read.image_size, size);
    EXPECT_EQ(read.pack.host.frame_count, job.packs.front().host.frame_count) << name;
    const auto samples_of = [&](const HostPack& host) {
      return feed::model_samples(host, size, [](const SampleText& text) { return std::vector<bool>(text.ids.size()); });
    };
    const auto written = samples_of(job.packs.front().host), own = samples_of(read.pack.host);
    ASSERT_EQ(own.size(), written.size());
    for (size_t i = 0; i < own.size(); ++i) {
      EXPECT_EQ(own[i].grids, written[i].grids);
      EXPECT_EQ(own[i].grids, grids);
      EXPECT_EQ(own[i].copies, name == std::string("tiny:3:stills") ? 4 : 1);
      EXPECT_EQ(own[i].copies, written[i].copies);
      EXPECT_TRUE(at::equal(own[i].frames, written[i].frames)) << name << ", sample " << i;
      EXPECT_EQ(own[i].texts[0].tokens, written[i].texts[0].tokens);
    }
  }
}

} // namespace
} // namespace fvlm::bench
