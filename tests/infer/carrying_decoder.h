// A decoder whose first layer carries a state: a decaying sum of the rows so far, which is added to each row before a
// Llama reads it. Its slots hold no numbers until a sequence has begun there.
#pragma once
#include "../model/tiny.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <optional>

namespace fvlm::infer {

using namespace model;

class CarryingDecoder : public Decoder {
 public:
  explicit CarryingDecoder(std::unique_ptr<Decoder> llama) : llama_(std::move(llama)) {}
  int64_t width() const override { return llama_->width(); }
  ops::Weight embedding() const override { return llama_->embedding(); }
  ops::Weight head() const override { return llama_->head(); }
  bool carries_state() const override { return true; }
  // Of rows without a gradient.
  Value forward(Tape& tape, Operations& ops, const Value& x, const Segments& segments,
                const ops::SharedGradientPass& pass, bool compensated, const AddedRows& added) const override {
    at::Tensor read = x.data.clone();
    for (int64_t i = 0; i + 1 < segments.cu_seqlens.size(0); ++i) {
      at::Tensor state = at::zeros({width()}, read.options());
      carry(read, state, segments.cu_seqlens[i].item<int64_t>(), segments.cu_seqlens[i + 1].item<int64_t>());
    }
    return llama_->forward(tape, ops, Value(read), segments, pass, compensated, added);
  }
  KvPages make_kv_pages(Operations& ops, int64_t pages, int64_t page_rows, int64_t slots) const override {
    KvPages made = llama_->make_kv_pages(ops, pages, page_rows, slots);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    made.states = {{at::full({slots, width()}, nan, ops.tensor_options())}};
    return made;
  }
  at::Tensor forward(Operations& ops, const at::Tensor& x, KvPages& pages, const StagedRows& rows) const override {
    const at::Tensor read = x.clone();
    const int32_t *bounds = rows.row_bounds.const_data_ptr<int32_t>(), *slots = rows.slots.const_data_ptr<int32_t>();
    for (int64_t i = 0; i < rows.slots.size(0); ++i) {
      if (bounds[i] == bounds[i + 1]) continue;
      EXPECT_LE(bounds[i + 1] - bounds[i], rows.longest_run());
      const at::Tensor state = pages.states[0][0][slots[i]];
      if (rows.starts.const_data_ptr<int32_t>()[i] != 0) state.zero_();
      carry(read, state, bounds[i], bounds[i + 1]);
    }
    return llama_->forward(ops, read, pages, rows);
  }
  bool can_defer_gradients(int64_t, int64_t) const override { return false; }
  double flops(double, double, bool, bool) const override { return 0; }
  double head_flops(double, bool, bool) const override { return 0; }

 private:
  static void carry(const at::Tensor& rows, const at::Tensor& state, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      state.mul_(0.8).add_(rows[row]);
      rows[row].add_(state);
    }
  }

  std::unique_ptr<Decoder> llama_;
};

inline std::unique_ptr<Decoder> carrying_decoder(const DecoderConfig& config, Parameters& parameters,
                                                 const std::string& part) {
  DecoderConfig llama = config;
  llama.model_type = "llama";
  return std::make_unique<CarryingDecoder>(make_decoder(llama, parameters, part));
}

inline ModelConfig carrying_config() {
  ModelConfig config = tiny_config();
  static const bool is_registered = [&] {
    DecoderFamily family = family_of(config.decoder);
    family.name = "carrying";
    family.types = {{"carrying", "CarryingForCausalLM"}};
    register_decoder(family, carrying_decoder);
    return true;
  }();
  config.decoder.model_type = is_registered ? "carrying" : "";
  return config;
}

} // namespace fvlm::infer
