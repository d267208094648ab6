// The model directory: fvlm.json, a Hugging Face folder for each encoder and decoder, a safetensors file for each
// connector. A checkpoint is one with a training_state/ beside.
#pragma once
#include "base/atomic_file.h"
#include "base/mapped_file.h"
#include "model/weights/adapter.h"
#include "model/weights/connector.h"
#include "model/weights/layout.h"
#include "model/weights/model_file.h"
#include "model/weights/packed_weight.h"
#include "model/weights/safetensors_writer.h"
#include "model/weights/towers.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace fvlm {

// The Hugging Face folder of an encoder or decoder: its config, its weights, and the files that go with every copy
// (tokenizer, licence, ...).
struct HuggingFaceFolder {
  struct Carried {
    std::string name;
    std::shared_ptr<const MappedFile> file;
    std::optional<std::string> changed = {}; // in place of the file's content
    std::string_view text() const { return changed ? std::string_view(*changed) : file->text(); }
  };
  std::filesystem::path path;
  nlohmann::json config;
  std::optional<Safetensors> weights; // none: it is made fresh
  std::vector<Carried> carried;
  nlohmann::json stacks; // of experts that its file has, which `weights` have apart: see stacked_experts.h
  // Of the decoder of a model that was imported from one folder: the folder's config.json and the names of its tensors,
  // so that it can be exported in that form. Null: there was none. See whole_model.h.
  nlohmann::json whole_model;
  static constexpr const char* whole_model_file = "whole_model.json";

  static HuggingFaceFolder open(const std::filesystem::path& path);
  // Copies have this text in a file of that name.
  void change(const std::string& name, std::string text);
  // The same with plain weights in place of those that are quantized in another form than ours: see quantized_folder.h.
  static HuggingFaceFolder open_plain(const std::filesystem::path& path);
  // Writes into config.json how these weights are stored, as transformers does.
  static void set_dtype(nlohmann::json& config, const std::vector<TensorInfo>& tensors);
  // The same for weights that are quantized, of which `stored` has the codes.
  static void set_quantization(nlohmann::json& config, const WeightLayout& stored);
  // The files of `path` that go with every copy, for a decoder that has no folder of its own.
  static std::vector<Carried> carry(const std::filesystem::path& path);
};

struct ModelPart {
  std::string name; // before the names of its parameters: "vision" in "vision.layernorm.weight"
  std::variant<VisionConfig, ConnectorConfig, DecoderConfig> config;
  HuggingFaceFolder folder;           // of an encoder or decoder
  std::optional<PartAdapter> adapter; // of an encoder or decoder whose own weights are frozen below adapters
  // Of a connector: the parts that it stands between. Empty: the only encoder, and every decoder.
  std::string encoder, decoder;

  Role role() const { return static_cast<Role>(config.index()); }
};

// All of a model directory besides its parameters. A copy keeps what it needs readable, also when the directory goes.
struct ModelDescription {
  std::string name;
  std::string stage; // of training that wrote it; empty: none
  int64_t step = 0;
  std::string plan_hash; // empty: no plan
  std::vector<ModelPart> parts;

  WeightLayout layout(const ModelPart& part) const;
  bool has_adapters() const;
  // Notes the checksum of each base: reads all of its bytes.
  void seal_bases();
  // Of a model that has one part of the role. Throws Error(data) for others.
  const ModelPart& sole_part(Role role) const;
  const VisionConfig& encoder() const { return std::get<VisionConfig>(sole_part(Role::encoder).config); }
  const ConnectorConfig& connector() const { return std::get<ConnectorConfig>(sole_part(Role::connector).config); }
  const DecoderConfig& decoder() const { return std::get<DecoderConfig>(sole_part(Role::decoder).config); }
  // All of them, one at least, of a model whose only connector they read. Throws Error(data) for others.
  std::vector<DecoderConfig> decoders() const;
  std::vector<int64_t> vocabulary_sizes() const; // of those decoders

 private:
  const ModelPart& neighbour(const ModelPart& connector, const std::string& named, Role role) const;
};

// A parameter where it lies in its file.
struct Parameter {
  std::string name; // "vision.encoder.layer.0.norm1.weight", "connector.q_static", "decoder.model.norm.weight"
  size_t part;      // index in ModelDescription::parts
  const TensorSpec* spec;
  const TensorView* view;                              // of a quantized weight its codes, as they are packed on disk
  const PackedScheme* scheme;                          // of a quantized weight; null: `view` has its numbers
  const TensorView *scale = nullptr, *shape = nullptr; // of a quantized weight
  bool of_adapter = false;                             // it lies in the adapter's file, not in the part's
};

// The tensors of a parameter's file by name: itself, or the three of a quantized weight.
std::vector<std::pair<std::string, const TensorView*>> stored_tensors(const Parameter& parameter);

class ModelDirectory {
 public:
  // Maps the files and checks all but the checksums. Throws Error(data).
  static ModelDirectory open(const std::filesystem::path& path);

  const std::filesystem::path& path() const;
  const ModelDescription& description() const;
  const std::vector<Parameter>& parameters() const&;           // part by part, in the order of each part's layout
  const Parameter& at(std::string_view name) const&;           // throws Error(data) with the nearest name
  const std::vector<Parameter>& parameters() const&& = delete; // views of a temporary would be of nothing
  const Parameter& at(std::string_view name) const&& = delete;
  WeightSchemes schemes() const; // of quantized weights
  // Throws Error(data) for a quantized model, which `reader` ("training") cannot read.
  void require_plain(const char* reader) const;
  // Throws Error(data) for a model with adapters, which `reader` cannot read.
  void require_no_adapters(const char* reader) const;
  // Throws Error(data) where the weights below adapters are not those that they were trained on: reads them all.
  void verify_bases() const;
  // Lets go of the memory behind a parameter, for whoever has copied it.
  void drop(const Parameter& parameter) const;
  // Reads everything. Throws Error(data) that names every tensor whose bytes are not those that were written. Without
  // checksums in fvlm.json (another program's directory) there is nothing to compare.
  void verify() const;

 private:
  struct Content;
  explicit ModelDirectory(std::shared_ptr<const Content> content) : content_(std::move(content)) {}
  std::shared_ptr<const Content> content_;
};

// Writes a model directory that appears whole or not at all. Files are on disk, checksums in fvlm.json.
class ModelDirectoryWriter {
 public:
  // `dtype_of` says for each parameter's name how it is stored, unless it is quantized. Throws Error(data) when there
  // is something at `path`.
  ModelDirectoryWriter(std::filesystem::path path, ModelDescription description,
                       const std::function<DType(const std::string& name)>& dtype_of,
                       const WeightSchemes& schemes = {});

  // The order in which the bytes of all parameters are wanted. Quantized ones are three tensors: see packed_weight.h.
  const std::vector<TensorInfo>& order() const { return order_; }
  // The next bytes of the next parameter: all of them or a piece, never of two.
  void append(std::span<const std::byte> bytes);
  // For what a checkpoint holds besides; flushed to disk by whoever writes it.
  const std::filesystem::path& folder() const { return folder_.temporary_path(); }
  // The files are as they will be.
  void finish();
  // The folder appears; finish() before it where nobody has called it.
  void commit();

 private:
  // A tensor of the files, in the order in which they are written; those that are no parameter are written by us.
  struct Step {
    size_t part;
    TensorInfo info;
    bool parameter;
  };
  void open_part(size_t index, const std::function<DType(const std::string& name)>& dtype_of,
                 const WeightSchemes& schemes);
  void open_adapter(size_t index, const std::function<DType(const std::string& name)>& dtype_of);
  void write_config(size_t index, const WeightLayout& stored);
  void write_beside(const ModelPart& part, const nlohmann::json& config);
  void pass_over();
  std::vector<std::byte> passenger_bytes(const Step& step) const;

  AtomicFolder folder_;
  ModelDescription description_;
  std::deque<SafetensorsWriter> writers_; // one a part
  std::vector<Step> steps_;
  std::vector<TensorInfo> order_;
  size_t next_ = 0;      // of steps_
  uint64_t missing_ = 0; // bytes of that step
  bool finished_ = false;
};

} // namespace fvlm
