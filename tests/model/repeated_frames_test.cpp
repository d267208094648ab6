// Frames that a sample repeats, encoded once: the same visual tokens, losses and gradients as of a sample that has
// every copy.
#include "model/connector/mlp/settings.h"
#include "model/connector/perceiver/settings.h"
#include "tiny.h"

using namespace fvlm;
using namespace fvlm::model;
using at::Tensor;

namespace {

// Videos, text alone, and images that are repeated a different number of times.
std::vector<Sample> shared_samples(int64_t texts = 1) {
  Dice dice(17);
  std::vector<Sample> samples;
  for (const auto& [frames, copies] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 4}, {3, 1}, {0, 1}, {1, 3}, {2, 2}}) {
    samples.push_back(random_sample(dice, frames, dice.upto(4, 9), texts));
    samples.back().copies = copies;
  }
  return samples;
}

std::vector<Sample> with_every_copy(std::vector<Sample> samples) {
  for (Sample& sample : samples)
    if (sample.frames.defined()) sample.frames = sample.frames.repeat_interleave(std::exchange(sample.copies, 1), 0);
  return samples;
}

Capacity wider(Capacity capacity) {
  capacity.frames += 5;
  capacity.encoder_frames += 2;
  capacity.rows += 3;
  return capacity;
}

struct Way {
  const char* name;
  bool vision_trains = true, coarse_in_tower = true, skip_last_patches = true, shallow = false;
  int64_t texts = 1;
};

class RepeatedFrames : public testing::TestWithParam<Way> {};

void expect_same_learning(Tiny& tiny, const std::string& mode, int64_t texts) {
  const auto shared = shared_samples(texts), apart = with_every_copy(shared);
  const Pack whole = tiny.pack(apart);
  const Tensor losses = tiny.losses(whole, tiny.ones(whole), mode);
  const auto gradients = tiny.take_gradients();
  const int64_t rows = tiny.model.frame_reader(8, 8).rows_per_frame;
  const Capacity exact = Capacity::of(shared, rows);
  EXPECT_EQ(exact.frames, 14);
  EXPECT_EQ(exact.encoder_frames, 7);
  for (const Capacity& capacity : {exact, wider(exact)}) {
    const Pack pack = tiny.pack(shared, capacity);
    EXPECT_EQ(pack.frames.size(0), capacity.encoder_frames);
    EXPECT_EQ(pack.frame_slots, capacity.frames);
    ops::expect_close(tiny.losses(pack, tiny.ones(pack), mode).narrow(0, 0, losses.size(0)), losses, 1e-12, "losses");
    const auto own = tiny.take_gradients();
    ASSERT_EQ(own.size(), gradients.size());
    double most = 0;
    for (const auto& [name, gradient] : gradients) {
      const double largest = gradient.abs().max().item<double>();
      most = std::max(most, largest);
      ops::expect_close(own.at(name) / std::max(largest, 1e-4), gradient / std::max(largest, 1e-4), 1e-11, name);
    }
    EXPECT_GT(most, 0);
  }
}

TEST_P(RepeatedFrames, GiveTheSameLossesAndGradients) {
  for (const char* mode : {"coarse_fine", "refined", "coarse_only"}) {
    SCOPED_TRACE(mode);
    ModelConfig config = tiny_config();
    if (GetParam().shallow) config.connector.as<connector::Foveated>()->attend = connector::Attend::shallow;
    Tiny tiny(config, at::kDouble,
              [](const ParameterSpec& spec) { return GetParam().vision_trains || !spec.name.starts_with("vision."); });
    tiny.model.speed.coarse_in_tower = GetParam().coarse_in_tower;
    tiny.model.speed.skip_last_patches = GetParam().skip_last_patches;
    expect_same_learning(tiny, mode, GetParam().texts);
  }
}

INSTANTIATE_TEST_SUITE_P(ways, RepeatedFrames,
                         testing::Values(Way{"trained"}, Way{"frozen", false}, Way{"coarse_apart", true, false},
                                         Way{"whole_layers", true, true, false}, Way{"shallow", true, true, true, true},
                                         Way{"pairs", true, true, true, false, 2}),
                         [](const auto& info) { return info.param.name; });

TEST(RepeatedFramesAlone, GiveTheSameTokensQueriesAndMaps) {
  const auto shared = shared_samples(), apart = with_every_copy(shared);
  for (const char* mode : {"coarse_fine", "refined", "coarse_only", "autoregressive"})
    for (const auto outputs : {EncodeOutputs::tokens, EncodeOutputs::tokens_and_attention}) {
      SCOPED_TRACE(mode);
      Tiny tiny;
      ops::Tape none(ops::Tape::Mode::forward_only);
      const auto read = [&](const Pack& pack) {
        return tiny.model.encode(none, *tiny.operations, pack, mode, outputs);
      };
      const VisualTokens expected = read(tiny.pack(apart)),
                         seen = read(tiny.pack(shared, wider(Capacity::of(shared, 1))));
      const auto used = [](const Tensor& all) { return all.narrow(0, 0, 14); };
      EXPECT_EQ(seen.tokens.data.size(0), 19);
      ops::expect_close(used(seen.tokens.data), expected.tokens.data, 1e-12, "tokens");
      ops::expect_close(used(seen.queries.data), expected.queries.data, 1e-12, "queries");
      ASSERT_EQ(seen.attention.defined(), outputs == EncodeOutputs::tokens_and_attention);
      if (seen.attention.defined()) ops::expect_close(used(seen.attention), expected.attention, 1e-12, "maps");
    }
}

TEST(RepeatedFramesAlone, GiveTheSameToOtherConnectors) {
  for (const bool attends : {false, true}) {
    ModelConfig config = tiny_config();
    if (attends) {
      connector::Perceiver perceiver;
      perceiver.queries = 2, perceiver.layers = 2, perceiver.heads = 2, perceiver.projector_width = 24;
      config.connector = perceiver;
    } else {
      config.connector = connector::Mlp();
    }
    Tiny tiny(config);
    SCOPED_TRACE(config.connector->name());
    const int64_t rows = tiny.model.frame_reader(8, 8).rows_per_frame;
    const auto shared = shared_samples(), apart = with_every_copy(shared);
    const std::string mode = config.connector->modes().front().name;
    const auto learn = [&](const std::vector<Sample>& samples) {
      const Pack pack = tiny.pack(samples, Capacity::of(samples, rows));
      const Tensor losses = tiny.losses(pack, tiny.ones(pack), mode);
      return std::pair(losses, tiny.take_gradients());
    };
    const auto [losses, gradients] = learn(apart);
    const auto [own_losses, own_gradients] = learn(shared);
    ops::expect_close(own_losses, losses, 1e-12, "losses");
    for (const auto& [name, gradient] : gradients) ops::expect_close(own_gradients.at(name), gradient, 1e-11, name);
  }
}

// What a step of packs without repeats is captured and timed by.
TEST(RepeatedFramesAlone, AddNothingToPacksWithoutThem) {
  Tiny tiny;
  Dice dice(3);
  const std::vector<Sample> samples{random_sample(dice, 3, 5), random_sample(dice, 1, 4)};
  const Pack pack = tiny.pack(samples, wider(Capacity::of(samples, 1)));
  EXPECT_FALSE(pack.frame_source.defined());
  EXPECT_EQ(pack.encoder_slots, pack.frame_slots);
  EXPECT_FALSE(pack.maps.segments.contains("fine queries"));
}

} // namespace
