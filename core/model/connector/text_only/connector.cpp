#include "model/connector/connector.h"

#include "base/error.h"
#include "model/connector/text_only/settings.h"

namespace fvlm::model {
namespace {

class TextOnlyConnector : public Connector {
 public:
  explicit TextOnlyConnector(const Parts& parts) : Connector(parts) {}

  VisualTokens encode(Tape&, Operations&, const Pack&, const EncodeRequest&) const override {
    throw Error(ErrorKind::data, "the model reads text alone, and got frames");
  }
  double flops(const FlopsRequest&) const override { return 0; }
};

} // namespace

std::unique_ptr<Connector> text_only_connector(const plan::ConnectorSettings&, const Parts& parts, Parameters&) {
  return std::make_unique<TextOnlyConnector>(parts);
}

} // namespace fvlm::model
