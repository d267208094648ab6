// Models that are stored in bfloat16, on a CPU in float32: linears read the weights as they are stored, and what comes
// out is that of the same numbers stored in float32.
#include "base/scratch_folder.h"
#include "model/execution.h"
#include "model/loading.h"
#include "rounded_generation.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/record_function.h>

namespace fvlm::infer {
namespace {

ModelConfig stored_config() {
  ModelConfig config = decoder_config();
  config.vision.hidden_size = 64;
  config.vision.intermediate_size = 128;
  return config;
}

ModelDescription description_of(const ModelConfig& config) {
  const auto folder_of = [](const nlohmann::json& json) {
    HuggingFaceFolder folder;
    folder.config = json;
    return folder;
  };
  ModelDescription description;
  description.name = "stored";
  description.parts = {{"vision", config.vision, folder_of(config_json(config.vision)), {}, {}, {}},
                       {"connector", config.connector, {}, {}, {}, {}},
                       {"decoder", config.decoder, folder_of(config_json(config.decoder)), {}, {}, {}}};
  return description;
}

// The same numbers in both types: random ones that bfloat16 has.
void write_model(const std::filesystem::path& folder, DType dtype) {
  ModelDirectoryWriter writer(folder, description_of(stored_config()), [dtype](const std::string&) { return dtype; });
  uint64_t seed = 1;
  for (const TensorInfo& info : writer.order()) {
    at::Tensor values = ops::random(info.shape, ++seed, at::kFloat);
    values = info.shape.size() < 2 ? values.mul(0.2).add(0.8)
                                   : values.mul(1 / std::sqrt(static_cast<double>(values[0].numel())));
    const at::Tensor stored = values.to(at::kBFloat16).to(scalar_type(dtype));
    writer.append({static_cast<const std::byte*>(stored.data_ptr()), static_cast<size_t>(stored.nbytes())});
  }
  writer.commit();
}

class StoredBfloat16 : public testing::Test {
 protected:
  // A model and its operations, as the program has them.
  struct Loaded {
    explicit Loaded(const std::filesystem::path& folder)
        : registry(bundled_plugins()), model(load_model(folder, Execution().answering_arena())) {
      registry.add_static(ops::reference_manifest(), [] { return &ops::reference_entry; });
      operations.emplace(registry, Execution().operations());
    }
    Registry registry;
    std::optional<ops::Operations> operations;
    std::unique_ptr<Model> model;
  };

  static void SetUpTestSuite() {
    scratch_ = std::make_unique<ScratchFolder>();
    write_model(*scratch_ / "bf16", DType::bf16);
    write_model(*scratch_ / "fp32", DType::f32);
  }
  static void TearDownTestSuite() { scratch_.reset(); }

  // Scalar types of some weights in a model of the folder in bfloat16.
  static at::ScalarType type_of(const char* name, const ArenaOptions& arena) {
    return load_model(*scratch_ / "bf16", arena)->parameters().at(name).value.scalar_type();
  }

  const c10::InferenceMode without_autograd_;
  static inline std::unique_ptr<ScratchFolder> scratch_;
};

TEST_F(StoredBfloat16, LinearsKeepTheirWeightsWhereTheModelAnswersInFloat32) {
  const Execution fp32, fp64{.dtype = "fp64"}, bf16{.dtype = "bf16"}, by_name{.kernels = {"reference"}};
  for (const char* name :
       {"decoder.model.layers.0.mlp.down_proj.weight", "decoder.model.layers.3.self_attn.k_proj.weight",
        "decoder.model.embed_tokens.weight", "vision.encoder.layer.0.mlp.fc1.weight"}) {
    EXPECT_EQ(type_of(name, fp32.answering_arena()), at::kBFloat16) << name;
    EXPECT_EQ(type_of(name, fp32.arena(false)), at::kFloat) << name;
    EXPECT_EQ(type_of(name, fp64.answering_arena()), at::kDouble) << name;
    EXPECT_EQ(type_of(name, bf16.answering_arena()), at::kBFloat16) << name;
    EXPECT_EQ(type_of(name, by_name.answering_arena()), at::kFloat) << name << " of plugins that may not have it";
  }
  for (const char* name :
       {"decoder.model.norm.weight", "vision.encoder.layer.0.mlp.fc1.bias", "vision.embeddings.position_embeddings",
        "vision.embeddings.patch_embeddings.projection.weight"})
    EXPECT_EQ(type_of(name, fp32.answering_arena()), at::kFloat) << name;
}

TEST_F(StoredBfloat16, ABlockOfTwoTypesAndOneBelowAdaptersAreExpanded) {
  const ParameterSpec q{"q.weight", {8, 4}}, k{"k.weight", {2, 4}}, out{"out.weight", {3, 4}};
  ArenaOptions options{.trains = [](const ParameterSpec&) { return false; }};
  options.is_bfloat16 = [](const ParameterSpec& spec) { return spec.name != "k.weight"; };
  options.rank_of = [](const ParameterSpec& spec) { return spec.name == "out.weight" ? 2 : 0; };
  Parameters mixed({{q, k}, {out}}, options);
  for (const auto& parameter : mixed.all()) EXPECT_EQ(parameter.value.scalar_type(), at::kFloat) << parameter.name;
  EXPECT_TRUE(mixed.at("out.weight").joined.defined());
  options.rank_of = {};
  Parameters alike({{q}, {out}}, options);
  for (const auto& parameter : alike.all()) EXPECT_EQ(parameter.value.scalar_type(), at::kBFloat16) << parameter.name;
}

// Alone, as many as a few rows, and more: where the kernels of both types are the same, with the same bits.
TEST_F(StoredBfloat16, AnswersAndLogprobsOfBatchesAreThoseOfFloat32) {
  Loaded kept(*scratch_ / "bf16"), expanded(*scratch_ / "fp32");
  for (const int64_t count : {1, 7, 40}) {
    auto prompts = prompts_of(count, 3);
    for (Prompt& prompt : prompts) prompt.top_logprobs = vocabulary;
    const auto answers = [&](Loaded& of) {
      GenerationBatch batch(*of.model, *of.operations, {});
      for (const Prompt& prompt : prompts) batch.add(prompt);
      return batch.finish();
    };
    const auto found = answers(kept), expected = answers(expanded);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].tokens, expected[i].tokens) << i << " of " << count;
      const at::Tensor right = logprobs_of(expected[i]), difference = logprobs_of(found[i]) - right;
      EXPECT_LT(at::linalg_vector_norm(difference).item<double>() / at::linalg_vector_norm(right).item<double>(), 1e-6)
          << i << " of " << count;
    }
  }
}

class StoredBfloat16Losses : public StoredBfloat16 {
 protected:
  // As evaluations have them, of a pack with frames.
  static at::Tensor losses(Loaded& of) {
    Dice dice(5);
    const std::vector<Sample> samples{random_sample(dice, 3, 20), random_sample(dice, 1, 40)};
    ops::Tape none(ops::Tape::Mode::forward_only);
    const Pack pack =
        make_pack(samples, Capacity::of(samples, 1), of.model->frame_reader(8, 8), of.operations->tensor_options());
    const auto visual = of.model->encode(none, *of.operations, pack, "coarse_fine");
    const auto hidden = of.model->decode(none, *of.operations, visual.tokens, pack);
    return label_losses(none, *of.operations, *of.model, hidden, pack).data.to(at::kDouble);
  }
};

// LayerScale is folded into weights of float32 alone.
TEST_F(StoredBfloat16Losses, AreThoseOfFloat32) {
  Loaded bf16(*scratch_ / "bf16"), fp32(*scratch_ / "fp32");
  const at::Tensor found = losses(bf16), right = losses(fp32);
  EXPECT_GT(right.max().item<double>(), 1);
  EXPECT_LT((found - right).abs().max().item<double>(), 1e-5 * right.max().item<double>());
}

// Elements of the tensors in bfloat16 that the thread converts.
class ConvertedBfloat16 {
 public:
  ConvertedBfloat16()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(&start).needsInputs(true).scopes({at::RecordScope::FUNCTION}))) {
    elements_ = 0;
  }
  ~ConvertedBfloat16() { at::removeCallback(handle_); }
  int64_t elements() const { return elements_; }

 private:
  static std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& call) {
    if (std::string_view(call.name()) == "aten::_to_copy" && call.inputs()[0].isTensor())
      if (const at::Tensor& x = call.inputs()[0].toTensor(); x.scalar_type() == at::kBFloat16) elements_ += x.numel();
    return nullptr;
  }
  static inline int64_t elements_ = 0;
  at::CallbackHandle handle_;
};

TEST_F(StoredBfloat16Losses, OfAllPacksConvertTheHeadOnce) {
  Loaded bf16(*scratch_ / "bf16");
  const int64_t head = bf16.model->decoder().head().value().numel();
  at::Tensor first, second;
  {
    const ConvertedBfloat16 converted;
    first = losses(bf16);
    EXPECT_GE(converted.elements(), head);
  }
  {
    const ConvertedBfloat16 converted;
    second = losses(bf16);
    EXPECT_LT(converted.elements(), head);
  }
  EXPECT_TRUE(at::equal(first, second));
}

} // namespace
} // namespace fvlm::infer
