#include "model/decoder/decoder.h"

#include "base/error.h"
#include "ops/pointwise.h"
#include "ops/rows.h"

#include <ATen/TensorOperators.h>
#include <fmt/format.h>

#include <map>

namespace fvlm::model {

#define FVLM_DECODER(name)                                                                                             \
  std::unique_ptr<Decoder> name##_decoder(const DecoderConfig&, Parameters&, const std::string&);
#include "model/decoder/decoders.inc"
#undef FVLM_DECODER

namespace {

std::map<std::string, MakeDecoder>& all_decoders() {
  static std::map<std::string, MakeDecoder> all = {
#define FVLM_DECODER(name) {#name, name##_decoder},
#include "model/decoder/decoders.inc"
#undef FVLM_DECODER
  };
  return all;
}

} // namespace

at::Tensor Decoder::embed(const Operations& ops, const at::Tensor& tokens) const {
  const at::Tensor rows = embedding().value().index_select(0, tokens).to(ops.options().dtype);
  return token_scale() == 1 ? rows : rows * ops::rounded(token_scale(), ops.options().dtype);
}

Value Decoder::head_rows(Tape& tape, const Value& hidden) const {
  return logits_scaling() == 1 ? hidden : ops::scale(tape, hidden, 1 / logits_scaling());
}

Value Decoder::logits(Tape& tape, Operations& ops, const Value& hidden) const {
  const Value logits = ops.linear(tape, head_rows(tape, hidden), head());
  return softcap() == 0 ? logits : ops::softcap(tape, logits, softcap());
}

std::unique_ptr<Decoder> make_decoder(const DecoderConfig& config, Parameters& parameters, const std::string& part) {
  const auto found = all_decoders().find(family_of(config).name);
  if (found == all_decoders().end())
    throw Error(ErrorKind::data, "no decoder of model_type '{}' is built in", config.model_type);
  return found->second(config, parameters, part);
}

void register_decoder(DecoderFamily family, MakeDecoder make) {
  all_decoders().emplace(family.name, make);
  add_family(std::move(family));
}

} // namespace fvlm::model
