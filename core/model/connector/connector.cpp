#include "model/connector/connector.h"

#include "base/error.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

namespace fvlm::model {

#define FVLM_CONNECTOR(name)                                                                                           \
  std::unique_ptr<Connector> name##_connector(const plan::ConnectorSettings&, const Parts&, Parameters&);
#include "model/connector/connectors.inc"
#undef FVLM_CONNECTOR

namespace {

std::map<std::string, MakeConnector, std::less<>>& all_connectors() {
  static std::map<std::string, MakeConnector, std::less<>> all = {
#define FVLM_CONNECTOR(name) {#name, name##_connector},
#include "model/connector/connectors.inc"
#undef FVLM_CONNECTOR
  };
  return all;
}

} // namespace

const Value& VisualTokens::view(const std::string& name) const {
  if (name.empty() || !tokens.defined()) return tokens;
  const auto found = views.find(name);
  if (found == views.end())
    throw Error(ErrorKind::recipe, "the connector has no view '{}' of its frames in this mode", name);
  return found->second;
}

VisualTokens Connector::encode_no_frames(Operations& ops, int64_t) const {
  VisualTokens none;
  none.tokens = Value(at::zeros({0, parts_.decoder.width()}, ops.tensor_options()));
  return none;
}

std::vector<Value> Connector::encode_for_all(Tape&, Operations&, const Pack&, const EncodeRequest&) const {
  throw Error(ErrorKind::internal, "the connector goes with one decoder");
}

Value Connector::adapt(Tape&, Operations&, const Value&, int64_t, size_t) const {
  throw Error(ErrorKind::internal, "the connector goes with one decoder");
}

std::unique_ptr<Connector> make_connector(const plan::ConnectorSettings& settings, const Parts& parts,
                                          Parameters& parameters) {
  const auto found = all_connectors().find(settings.name());
  if (found == all_connectors().end()) throw Error(ErrorKind::data, "no connector '{}' is built in", settings.name());
  if (settings.reads_bytes() != parts.encoder.reads_bytes())
    throw Error(ErrorKind::data, "the connector fvlm.{} reads {}, and the encoder {}", settings.name(),
                settings.reads_bytes() ? "texts as bytes" : "images",
                parts.encoder.reads_bytes() ? "texts as bytes" : "images")
        .advise("fvlm.byte_latents goes with the encoder fvlm.bytes, and other connectors with an encoder of images");
  return found->second(settings, parts, parameters);
}

void register_connector(std::string_view name, MakeConnector make) {
  all_connectors().emplace(name, make);
}

} // namespace fvlm::model
