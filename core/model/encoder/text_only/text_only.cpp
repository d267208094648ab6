#include "base/error.h"
#include "model/encoder/encoder.h"

namespace fvlm::model {
namespace {

class TextOnly : public Encoder {
 public:
  int64_t width() const override { return 1; }
  int64_t tokens_per_frame(int64_t, int64_t) const override { return 1; }
  Value forward(Tape&, Operations&, const at::Tensor&, const Segments&, const PackMaps&) const override {
    throw Error(ErrorKind::data, "the model reads text alone, and got frames");
  }
  double flops(int64_t, bool) const override { return 0; }
  bool trains() const override { return false; }
};

} // namespace

std::unique_ptr<Encoder> text_only_encoder(const VisionConfig&, Parameters&) {
  return std::make_unique<TextOnly>();
}

} // namespace fvlm::model
