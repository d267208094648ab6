#include "model/weights/model_directory.h"
#include "model/weights/transfer.h"
#include "weights/format_1.h"
#include "weights/foveated.h"
#include "weights/tiny_model.h"
#include "weights/workshop.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::testing_weights;
using testing::AllOf;
using testing::HasSubstr;

namespace {

const TransferProgress quiet = [](uint64_t, uint64_t) {};

// Tiny towers in folder/vision and folder/decoder, imported as folder/model.
ImportRequest request_in(const Folder& folder) {
  return {.vision = folder / "vision",
          .decoder = folder / "decoder",
          .out = folder / "model",
          .connector_config = foveated(6),
          .seed = 5,
          .name = "tiny"};
}

void import_tiny(const Folder& folder) {
  tiny::write_towers(folder.path());
  put_file(folder / "decoder/tokenizer.json", "{\"a tokenizer\": 1}");
  put_file(folder / "decoder/notes.txt", "mine");
  put_file(folder / "vision/preprocessor_config.json", "{}");
  import_model(request_in(folder), quiet);
}

std::vector<float> values(const TensorView& view) {
  std::vector<float> out(view.elements());
  convert(view.data, view.dtype, std::as_writable_bytes(std::span(out)), DType::f32);
  return out;
}

std::vector<float> mask_token_in(const fs::path& file) {
  Safetensors opened = Safetensors::open(file);
  return values(opened.at("embeddings.mask_token"));
}

void change_json(const fs::path& path, const std::string& patch) {
  auto json = nlohmann::json::parse(read_file(path));
  json.merge_patch(nlohmann::json::parse(patch));
  put_file(path, json.dump());
}

std::string open_error(const fs::path& path) {
  return data_error_of([&] { ModelDirectory::open(path); });
}

} // namespace

TEST(ModelDirectory, ImportHoldsTowersTheirFilesAndAFreshConnector) {
  Folder folder;
  import_tiny(folder);
  ModelDirectory model = ModelDirectory::open(folder / "model");
  model.verify();
  EXPECT_EQ(model.description().name, "tiny");
  EXPECT_EQ(model.description().encoder(), tiny::vision_config());
  EXPECT_EQ(model.description().decoder(), tiny::decoder_config());
  EXPECT_EQ(config_json(model.description().connector()), config_json(foveated(6, 0.14)));
  EXPECT_EQ(read_file(folder / "model/decoder/tokenizer.json"), "{\"a tokenizer\": 1}");
  EXPECT_TRUE(fs::exists(folder / "model/vision/preprocessor_config.json"));
  EXPECT_FALSE(fs::exists(folder / "model/decoder/notes.txt")) << "only what belongs to the model goes along";

  size_t count = 0;
  for (const ModelPart& part : model.description().parts)
    for (const TensorSpec& spec : model.description().layout(part).tensors) {
      if (!spec.parameter) continue;
      const Parameter& parameter = model.at(part.name + "." + spec.name);
      EXPECT_EQ(model.parameters()[count++].name, parameter.name) << "parts and tensors come in order";
      std::vector<float> expected(parameter.view->elements());
      if (part.role() == Role::connector)
        initialize_weights(expected, spec.fill, 5, parameter.name);
      else
        expected = tiny::values_of(spec, 1);
      EXPECT_EQ(values(*parameter.view), expected) << parameter.name;
    }
  EXPECT_EQ(count, model.parameters().size());
  EXPECT_THAT(data_error_of([&] { model.at("vision.layernorm.wieght"); }), HasSubstr("\"vision.layernorm.weight\""));
  EXPECT_EQ(mask_token_in(folder / "model/vision"), mask_token_in(folder / "vision"));
}

TEST(ModelDirectory, SameSeedGivesTheSameBytes) {
  Folder folder;
  import_tiny(folder);
  ImportRequest request = request_in(folder);
  request.out = folder / "again";
  import_model(request, quiet);
  for (const char* file : {"fvlm.json", "connector.safetensors", "vision/model.safetensors", "decoder/config.json"})
    EXPECT_TRUE(read_file(folder / "model" / file) == read_file(folder / "again" / file)) << file;
  request.out = folder / "other", request.seed = 6;
  import_model(request, quiet);
  EXPECT_FALSE(read_file(folder / "model/connector.safetensors") == read_file(folder / "other/connector.safetensors"));
}

TEST(ModelDirectory, ImportMayBringAConnector) {
  Folder folder;
  import_tiny(folder);
  ImportRequest request = request_in(folder);
  request.connector = folder / "model/connector.safetensors";
  request.connector_config = foveated(384, 0.5, connector::Attend::shallow);
  request.seed = 99, request.out = folder / "second";
  import_model(request, quiet);
  EXPECT_TRUE(read_file(folder / "model/connector.safetensors") == read_file(folder / "second/connector.safetensors"));
  EXPECT_EQ(config_json(ModelDirectory::open(folder / "second").description().connector()),
            config_json(foveated(6, 0.5, connector::Attend::shallow)));
  request.connector = folder / "vision/model.safetensors", request.out = folder / "third";
  EXPECT_THAT(data_error_of([&] { import_model(request, quiet); }), HasSubstr("no tensor \"q_static\""));
}

TEST(ModelDirectory, ExportRoundsEachNumberAndReimports) {
  Folder folder;
  import_tiny(folder);
  for (DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    fs::path out = folder / std::string(name_of(dtype));
    TransferReport report = export_model(folder / "model", out, dtype, quiet);
    EXPECT_TRUE(report.overflowed.empty());
    ModelDirectory before = ModelDirectory::open(folder / "model"), after = ModelDirectory::open(out);
    after.verify();
    for (size_t i = 0; i < before.parameters().size(); ++i) {
      const TensorView &from = *before.parameters()[i].view, &to = *after.parameters()[i].view;
      std::vector<std::byte> expected(to.byte_size());
      convert(from.data, from.dtype, expected, dtype);
      EXPECT_EQ(to.dtype, dtype);
      EXPECT_TRUE(std::ranges::equal(to.data, expected)) << from.name;
    }
  }
  EXPECT_TRUE(read_file(folder / "model/decoder/model.safetensors") ==
              read_file(folder / "F32/decoder/model.safetensors"));
  EXPECT_THAT(read_file(folder / "BF16/decoder/config.json"), HasSubstr("\"bfloat16\""));
  Safetensors vision = Safetensors::open(folder / "BF16/vision");
  EXPECT_EQ(vision.at("embeddings.mask_token").dtype, DType::bf16);
}

TEST(ModelDirectory, ExportToFp16ReportsOverflow) {
  Folder folder;
  tiny::write_towers(folder.path());
  ImportRequest request = request_in(folder);
  request.dtype = DType::f32;
  import_model(request, quiet);
  DecoderConfig large = tiny::decoder_config();
  large.initializer_range = 1e5;
  tiny::write_folder(folder / "large", large, 1);
  change_json(folder / "large/config.json", R"({"initializer_range": 0.02})");
  request.decoder = folder / "large", request.out = folder / "wide";
  import_model(request, quiet);
  TransferReport report = export_model(folder / "wide", folder / "narrow", DType::f16, quiet);
  EXPECT_GT(report.overflowed.at("decoder.model.embed_tokens.weight"), 100u);
  EXPECT_FALSE(report.overflowed.contains("decoder.model.norm.weight"));
}

TEST(ModelDirectory, ImportRemovesPrefixesAndCopiesOfATiedHead) {
  Folder folder;
  tiny::write_towers(folder.path());
  for (const char* part : {"vision", "decoder"}) {
    Safetensors original = Safetensors::open(folder / part);
    std::vector<TensorInfo> tensors(original.tensors().begin(), original.tensors().end());
    std::string prefix = part == std::string("vision") ? "dinov2." : "";
    for (TensorInfo& tensor : tensors) tensor.name = prefix + tensor.name;
    if (prefix.empty()) tensors.push_back({"lm_head.weight", DType::f32, {97, 16}});
    SafetensorsWriter writer(folder / part / "model.safetensors", tensors);
    for (const TensorInfo& tensor : writer.order())
      writer.append(
          original.at(tensor.name == "lm_head.weight" ? "model.embed_tokens.weight" : tensor.name.substr(prefix.size()))
              .data);
    writer.commit();
  }
  import_model(request_in(folder), quiet);
  ModelDirectory model = ModelDirectory::open(folder / "model");
  model.verify();
  Safetensors vision = Safetensors::open(folder / "model/vision"),
              decoder = Safetensors::open(folder / "model/decoder");
  EXPECT_EQ(decoder.find("lm_head.weight"), nullptr);
  EXPECT_NE(vision.find("embeddings.cls_token"), nullptr);
  EXPECT_NE(values(vision.at("embeddings.mask_token")), std::vector<float>(8, 0.0F))
      << "what is no parameter came along under its prefix too";
}

TEST(ModelDirectory, DamageIsFoundAndNamedTensorByTensor) {
  Folder folder;
  import_tiny(folder);
  fs::path file = folder / "model/decoder/model.safetensors";
  std::string bytes = read_file(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  put_file(file, bytes);
  ModelDirectory model = ModelDirectory::open(folder / "model");
  EXPECT_THAT(data_error_of([&] { model.verify(); }),
              AllOf(HasSubstr("decoder.model.norm.weight"), HasSubstr("checksum"), HasSubstr("damaged")));
  EXPECT_THAT(data_error_of([&] { export_model(folder / "model", folder / "out", DType::bf16, quiet); }),
              HasSubstr("decoder.model.norm.weight"));
  EXPECT_FALSE(fs::exists(folder / "out"));
}

TEST(ModelDirectory, OverwritesNothingAndLeavesNothingHalfWritten) {
  Folder folder;
  import_tiny(folder);
  try {
    import_model(request_in(folder), quiet);
    ADD_FAILURE() << "written over";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::output) << "nothing is wrong with the data that are read";
    EXPECT_THAT(error.what(), HasSubstr("already exists"));
  }
  ImportRequest request = request_in(folder);
  request.out = folder / "new";
  EXPECT_THROW(import_model(request,
                            [](uint64_t done, uint64_t total) {
                              if (done > total / 2) throw Error(ErrorKind::stopped, "enough");
                            }),
               Error);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path())) names.push_back(entry.path().filename().string());
  EXPECT_THAT(names, testing::UnorderedElementsAre("vision", "decoder", "model"));
}

TEST(ModelDirectory, DescriptionOutlivesItsDirectory) {
  Folder folder;
  import_tiny(folder);
  ModelDescription description = ModelDirectory::open(folder / "model").description();
  std::string before = read_file(folder / "model/decoder/tokenizer.json");
  ModelDirectory old = ModelDirectory::open(folder / "model");
  fs::remove_all(folder / "model");
  description.stage = "align", description.step = 100, description.plan_hash = "abc";
  ModelDirectoryWriter writer(folder / "step-000100", description, [](const std::string&) { return DType::f32; });
  for (const TensorInfo& tensor : writer.order()) writer.append(old.at(tensor.name).view->data);
  fs::create_directory(writer.folder() / "training_state");
  writer.commit();
  ModelDirectory written = ModelDirectory::open(folder / "step-000100");
  written.verify();
  EXPECT_EQ(written.description().stage, "align");
  EXPECT_EQ(written.description().step, 100);
  EXPECT_EQ(written.description().plan_hash, "abc");
  EXPECT_EQ(read_file(folder / "step-000100/decoder/tokenizer.json"), before);
  EXPECT_TRUE(fs::is_directory(folder / "step-000100/training_state"));
}

TEST(ModelDirectory, FreshTowerNeedsNoFolder) {
  Folder folder;
  ModelDescription description;
  description.name = "fresh";
  description.parts = {
      {"vision", tiny::vision_config(), {}}, {"connector", foveated(6), {}}, {"decoder", tiny::decoder_config(), {}}};
  description.parts[0].folder.config = config_json(tiny::vision_config());
  description.parts[2].folder.config = config_json(tiny::decoder_config());
  ModelDirectoryWriter writer(folder / "model", description, [](const std::string&) { return DType::bf16; });
  for (const TensorInfo& tensor : writer.order()) writer.append(std::vector<std::byte>(tensor.byte_size()));
  EXPECT_THROW(writer.append(std::vector<std::byte>(1)), Error);
  writer.commit();
  ModelDirectory model = ModelDirectory::open(folder / "model");
  model.verify();
  EXPECT_EQ(mask_token_in(folder / "model/vision"), std::vector<float>(8, 0.0F));
}

TEST(MalformedModelDirectory, SaysWhatIsMissingOrWrong) {
  Folder folder;
  import_tiny(folder);
  fs::path model = folder / "model", file = model / "fvlm.json";
  std::string good = as_format_1(read_file(file));
  auto with = [&](const std::string& patch) {
    put_file(file, good);
    change_json(file, patch);
    return open_error(model);
  };
  EXPECT_THAT(open_error(folder / "vision"), AllOf(HasSubstr("no fvlm.json"), HasSubstr("fvlm-engine import")));
  EXPECT_THAT(open_error(folder / "nowhere"), HasSubstr("there is no such folder"));
  EXPECT_THAT(open_error(folder.path()), HasSubstr("no fvlm.json"));
  EXPECT_THAT(with(R"({"format_version": 3})"), AllOf(HasSubstr("format version 3"), HasSubstr("newer")));
  EXPECT_THAT(with(R"({"format_version": null})"), HasSubstr("'format_version' is missing"));
  EXPECT_THAT(with(R"({"connector": null})"), HasSubstr("'connector' is missing"));
  EXPECT_THAT(
      with(R"({"connector": {"query_dim": 7}})"),
      AllOf(HasSubstr("\"q_init\" has the shape [1, 6], and must have [1, 7]"), HasSubstr("connector.safetensors")));
  EXPECT_THAT(with(R"({"step": -3})"), HasSubstr("'step' is -3"));
  EXPECT_THAT(with(R"({"modl": "x"})"), AllOf(HasSubstr("\"modl\" is unknown"), HasSubstr("'model'")));
  EXPECT_THAT(with(R"({"checksums": []})"), HasSubstr("'checksums' is []"));
  EXPECT_THAT(with(R"({"checksums": {"algorithm": "md5"}})"), HasSubstr("\"md5\""));
  EXPECT_THAT(with(R"({"checksums": {"tensors": {"connector.q_init": "xyz"}}})"),
              AllOf(HasSubstr("connector.q_init"), HasSubstr("16 hexadecimal")));
  EXPECT_THAT(with(R"({"checksums": {"tensors": {"connector.q_init": null}}})"),
              HasSubstr("no checksum of \"connector.q_init\""));
  EXPECT_THAT(with(R"({"checksums": {"tensors": {"decoder.extra": "0123456789abcdef"}}})"),
              HasSubstr("checksum of \"decoder.extra\", and no such"));
  put_file(file, good.substr(0, good.size() / 2));
  EXPECT_THAT(open_error(model), HasSubstr("invalid JSON"));
  put_file(file, good);
  fs::rename(model / "connector.safetensors", model / "c");
  EXPECT_THAT(open_error(model),
              AllOf(HasSubstr("connector.safetensors"), HasSubstr("weights of the part \"connector\""),
                    HasSubstr("`fvlm-engine import` makes new weights")));
  fs::rename(model / "c", model / "connector.safetensors");
  change_json(model / "decoder/config.json", R"({"vocab_size": 98})");
  EXPECT_THAT(open_error(model),
              HasSubstr("\"model.embed_tokens.weight\" has the shape [97, 16], and must have [98, 16]"));
  fs::remove(model / "decoder/config.json");
  EXPECT_THAT(open_error(model), AllOf(HasSubstr("decoder/config.json"), HasSubstr("open the file")));
  fs::remove_all(model / "vision");
  EXPECT_THAT(open_error(model), HasSubstr("no such folder"));
}

TEST(ModelDirectory, FromAnotherProgramNeedsNoChecksums) {
  Folder folder;
  import_tiny(folder);
  put_file(folder / "model/fvlm.json",
           R"({"format_version": 1, "connector": {"kind": "fvlm", "query_dim": 6, "visual_scale": 1}})");
  ModelDirectory model = ModelDirectory::open(folder / "model");
  EXPECT_EQ(model.description().name, "model");
  EXPECT_NO_THROW(model.verify());
  export_model(folder / "model", folder / "out", DType::f32, quiet);
  EXPECT_THAT(read_file(folder / "out/fvlm.json"), HasSubstr("\"decoder.model.norm.weight\""));
}

// The PyTorch oracle's own directories: with a sharded, untied decoder.
TEST(ModelDirectory, FromThePytorchOracleIsRead) {
  skip_without("transformers");
  if (IsSkipped()) return;
  Folder folder;
  std::string command = fmt::format("cd '{}' && '{}' -B '{}' model untied made >log 2>&1", folder.path().string(),
                                    FVLM_PYTHON, FVLM_MAKE_TINY);
  ASSERT_EQ(std::system(command.c_str()), 0) << read_file(folder / "log");
  ModelDirectory model = ModelDirectory::open(folder / "made");
  EXPECT_TRUE(fs::exists(folder / "made/decoder/model.safetensors.index.json"));
  EXPECT_EQ(model.description().decoder().head_dim, 16);
  EXPECT_EQ(model.at("connector.q_static").view->shape, (std::vector<int64_t>{1, 24}));
  export_model(folder / "made", folder / "out", DType::bf16, quiet);
  EXPECT_TRUE(fs::exists(folder / "out/decoder/tokenizer.json"));
}

// transformers loads both towers as they were written, in every element type, with no tensor missing or left over.
TEST(ModelDirectory, TransformersLoadsTheTowers) {
  skip_without("transformers");
  if (IsSkipped()) return;
  Folder folder;
  import_tiny(folder);
  DecoderConfig untied = tiny::decoder_config();
  untied.tie_word_embeddings = false, untied.head_dim = 8, untied.num_key_value_heads = 4;
  tiny::write_folder(folder / "untied", untied, 2);
  ImportRequest request = request_in(folder);
  request.decoder = folder / "untied", request.out = folder / "model2", request.dtype = DType::bf16;
  import_model(request, quiet);
  export_model(folder / "model", folder / "half", DType::f16, quiet);
  put_file(folder / "load.py", R"(
import sys, torch
from safetensors.torch import load_file
from transformers import Dinov2Model, LlamaForCausalLM
folder = sys.argv[1]
for model, dtype in (("model", torch.float32), ("model2", torch.bfloat16), ("half", torch.float16)):
    for cls, part in ((Dinov2Model, "vision"), (LlamaForCausalLM, "decoder")):
        made, info = cls.from_pretrained(f"{folder}/{model}/{part}", output_loading_info=True, dtype="auto")
        assert not any(info.values()), info
        assert made.dtype == dtype, (made.dtype, dtype)
        made.save_pretrained(f"{folder}/resaved")
        ours, theirs = load_file(f"{folder}/{model}/{part}/model.safetensors"), load_file(f"{folder}/resaved/model.safetensors")
        assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours), model
)");
  std::string command =
      fmt::format("cd '{0}' && HF_HUB_OFFLINE=1 '{1}' -B load.py '{0}' >log 2>&1", folder.path().string(), FVLM_PYTHON);
  EXPECT_EQ(std::system(command.c_str()), 0) << read_file(folder / "log");
}
