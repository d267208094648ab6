// What a recipe, and a model directory, say of the connector between encoder and decoder: its settings, the modes that
// it can encode frames in, and the weights that it consists of. The connectors themselves are in core/model/connector/.
#pragma once
#include "base/polymorphic.h"
#include "recipe/visual_rows.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm {
class ConfigReader;  // base/config_reader.h
struct WeightLayout; // model/weights/layout.h
} // namespace fvlm

namespace fvlm::plan {

// A way to encode frames.
struct ConnectorMode {
  std::string name, doc;
  std::string training_doc;  // empty: no mode to train in
  bool has_gradients = true; // false: inference alone
};

class ConnectorSettings {
 public:
  ConnectorSettings() = default;
  ConnectorSettings(const ConnectorSettings&) = default;
  ConnectorSettings(ConnectorSettings&&) = default;
  ConnectorSettings& operator=(const ConnectorSettings&) = default;
  ConnectorSettings& operator=(ConnectorSettings&&) = default;
  virtual ~ConnectorSettings() = default;
  virtual std::unique_ptr<ConnectorSettings> clone() const = 0;

  // The constructor in a recipe, "foveated", and the kind in fvlm.json.
  virtual std::string_view name() const = 0;
  virtual std::string_view kind() const { return name(); }
  // The first is the default, in training and elsewhere.
  virtual std::vector<ConnectorMode> modes() const = 0;
  // Views of a frame that an objective can name besides the connector's own choice, see ObjectiveTerm::view().
  virtual std::vector<std::string> views() const { return {}; }
  // The mode that a word on the command line names, which may change the settings; an empty word is the first mode.
  // Throws Error(usage).
  virtual std::string select_mode(std::string_view word);

  // The mode that generation encodes frames in: the one for inference alone, or else the default.
  virtual std::string inference_mode() const;
  // The mode that a new recipe trains in, so that what is learned is what generation needs: the first, or another.
  virtual std::string recommended_training_mode() const { return mode_names().front(); }
  // Bytes of what so many decoders elsewhere have to be sent for a frame in this mode. Nothing: frames do not travel.
  struct Wire {
    std::string_view mode;
    int64_t encoder_width = 0, decoders = 1;
  };
  virtual std::optional<int64_t> wire_bytes(const Wire&) const { return {}; }

  // Decoder rows that the connector makes of a frame; 0: there are none. `tokens_per_frame` returns the encoder's
  // tokens of a frame; it is called only by connectors whose number depends on it.
  using TokensPerFrame = std::function<int64_t()>;
  virtual int64_t rows_per_frame(const TokensPerFrame&) const { return 1; }
  // See VisualRows::in_place.
  virtual bool rows_in_place() const { return false; }
  // Whether the encoder reads the bytes of a text, see VisualRows::max_bytes. Other connectors read images.
  virtual bool reads_bytes() const { return false; }
  // Whether there are frames at all, see VisualRows::text_only.
  virtual bool reads_frames() const { return true; }

  // The weights between an encoder and a decoder of these widths.
  virtual WeightLayout layout(int64_t encoder_width, int64_t decoder_width) const = 0;
  // Whether several decoders can read what the connector makes of a frame; and the weights that a decoder after the
  // first then adds, which go by its name.
  virtual bool goes_with_several_decoders() const { return false; }
  virtual void append_decoder(WeightLayout&, const std::string&, int64_t, int64_t) const {} // name, both widths
  // In fvlm.json, besides the kind. read_config() notes in the reader what is wrong.
  virtual nlohmann::json config_json() const = 0;
  virtual void read_config(ConfigReader& reader) = 0;
  // Takes the sizes that the weights of a file decide, which come without a config. Throws Error(data).
  using ShapeOf = std::function<std::vector<int64_t>(const std::string& tensor)>;
  virtual void adopt_shapes(const ShapeOf&) {}

  std::vector<std::string> mode_names() const;
  std::vector<std::string> training_mode_names() const;
  VisualRows visual_rows(const TokensPerFrame& tokens_per_frame) const {
    return {rows_per_frame(tokens_per_frame), rows_in_place(), reads_bytes() ? tokens_per_frame() : 0, false,
            !reads_frames()};
  }
  // Nothing where the number depends on the encoder.
  std::optional<int64_t> known_rows_per_frame() const;
};

using Connector = Polymorphic<ConnectorSettings>;

// The part of a model's decoder, by its index: "decoder", "decoder2", "decoder3".
inline std::string decoder_name(size_t index) {
  return index == 0 ? "decoder" : "decoder" + std::to_string(index + 1);
}

// Of a recipe that does not mention it: the first of connectors.inc.
Connector default_connector();

} // namespace fvlm::plan
