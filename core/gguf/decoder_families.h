// What llama.cpp can have of a family of decoders, and how it calls and stores what it has: a model that was trained
// otherwise would answer otherwise.
#pragma once
#include "base/problems.h"
#include "gguf/file.h"
#include "gguf/names.h"
#include "model/weights/towers.h"

#include <fmt/format.h>

#include <optional>
#include <span>
#include <string>

namespace fvlm::gguf {

// Sets keys that begin with the architecture's name.
struct DecoderKeys {
  File& file;
  const char* architecture;

  void set(const std::string& key, Value value) { file.set(fmt::format("{}.{}", architecture, key), std::move(value)); }
  void size(const std::string& key, int64_t value) { set(key, static_cast<uint32_t>(value)); }
  void number(const std::string& key, double value) { set(key, static_cast<float>(value)); }
};

struct DecoderFamily {
  enum class Head { any, tied, separate };
  // The two features of a rotated pair: as our files have them, next to each other, or half of the rotated features
  // apart.
  enum class Pairs { as_stored, adjacent, apart };

  const char *model_type, *architecture; // ours, and llama.cpp's
  Pairs pairs = Pairs::as_stored;
  bool as_llama = false;    // all linears may have biases, and rotary positions Llama 3's scaling
  bool whole_heads = false; // head_dim is hidden_size / num_attention_heads
  Head head = Head::any;
  int64_t window_every = 0;         // layers without a sliding window, which the others have; 0: none has one
  bool has_own_windows = false;     // add_keys says which layers have one
  bool leading_dense = false;       // of layers with experts, the first may have none
  std::span<const Name> names = {}; // of modules of a layer that are not called as in Llama, or have another name there

  // What else cannot be had.
  void (*check)(const DecoderConfig&, Problems&) = nullptr;
  // Keys besides those of Llama, or in their place.
  void (*add_keys)(const DecoderConfig&, DecoderKeys&) = nullptr;
  // Tensors that are not stored as they are; nothing for others.
  std::optional<Tensor> (*tensor)(const DecoderConfig&, const std::string& name, const TensorView&) = nullptr;
};

// Throws Error(data) at `where` for a decoder that llama.cpp cannot have.
const DecoderFamily& decoder_family_of(const DecoderConfig& config, const std::string& where);

} // namespace fvlm::gguf
