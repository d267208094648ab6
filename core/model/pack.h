// A pack: samples of any length side by side in buffers of fixed size, and the maps that say who is whose. The only
// form a batch has. What is not filled is padding and changes no result.
#pragma once
#include "model/part.h"
#include "model/row_positions.h"
#include "ops/rows.h"
#include "recipe/image_grid.h"
#include "recipe/visual_rows.h"

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

namespace fvlm::model {

struct Text {
  std::vector<int64_t> tokens; // placeholders where visual rows stand; without any, all of them stand before
  std::vector<bool> is_label;  // as long; the first token and placeholders are none, whatever stands here
};

// What is seen and what is said of it: one text, or for preferences the chosen and the rejected one.
struct Sample {
  // [n, 3, H, W] float32, normalised; or for an encoder of bytes one text, uint8 [bytes]; undefined: none. Where
  // `grids` has videos, a cell takes several, see ImageGrid::squares().
  at::Tensor frames;
  std::vector<Text> texts;
  int64_t copies = 1; // frame slots that each of `frames` takes, one after the other: a still image takes several
  std::vector<ImageGrid> grids; // of the images and videos whose cells the frames are, in order; others have none
};

// Sizes of a pack's buffers.
struct Capacity {
  int64_t frames = 0;           // frame slots
  int64_t rows = 0;             // rows of the decoder: visual tokens and text
  int64_t sequences = 0;        // texts
  int64_t labels = 0;           // positions with a loss
  int64_t longest_sequence = 0; // rows of one sequence
  int64_t longest_video = 0;    // frames of one sample
  int64_t bytes = 0;            // of all texts that an encoder of bytes reads
  // Frames that the encoder reads, where samples repeat theirs; without, it reads all. Of cells their squares.
  int64_t encoder_frames = 0;

  // What these samples fill exactly.
  static Capacity of(const std::vector<Sample>& samples, int64_t rows_per_frame);
};

struct Labels {
  at::Tensor rows;      // int64 [labels]: the decoder row that predicts
  at::Tensor targets;   // int64 [labels]; -1: padding
  at::Tensor sequences; // int64 [labels]: whose it is; padding: the last
  at::Tensor weights;   // float32 [labels]: 1 / count, padding 0
};

// What an encoder or a connector adds to a pack for its own passes, by names that it alone knows.
struct PackMaps {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, ops::Segments> segments;
};

struct Pack {
  at::Tensor frames;     // [square slots, 3, H, W]; undefined where there are no frame slots, or frames are texts
  at::Tensor bytes;      // int64 [bytes] of all texts, one after the other, where the encoder reads bytes
  ops::Segments patches; // the encoder's tokens: a segment for each encoder slot, or for each image or step of cells
  PackMaps maps;         // the encoder's and the connector's
  // int64 [frame slots]: the encoder slot of the frame that each shows; undefined: each its own. A frame that several
  // show is encoded once; they are adjacent.
  at::Tensor frame_source;
  at::Tensor visual_source; // int64: which visual token each visual row of the decoder is; undefined: each once, in
                            // order. Padded by the first, as sequence.visual_rows is
  // int64 and float32 [means, 4]: further visual tokens behind all those of frames, means of four of them; undefined:
  // there are none.
  at::Tensor mean_rows, mean_shares;
  ops::Sequence sequence; // the decoder's rows
  ops::Segments texts;    // a segment a text, with its visual rows; positions on three axes where the decoder has them
  Labels labels;
  int64_t frame_slots = 0, frames_used = 0, encoder_slots = 0;
  int64_t slot_squares = 1;             // of each encoder slot, in `frames`: several where there are cells of videos
  std::vector<int64_t> text_rows;       // rows that hold text, in order
  std::vector<int64_t> labels_per_text; // how many each text has

  int64_t square_slots() const { return encoder_slots * slot_squares; }
  // The frames or the bytes; undefined where there are no frame slots.
  const at::Tensor& encoder_input() const { return bytes.defined() ? bytes : frames; }
  std::vector<at::Tensor*> tensors(); // all of them, those that are not defined too
  // All that passes ask of a pack besides what its tensors hold. What was recorded of one does for those that equal it.
  std::vector<int64_t> shape();

 private:
  std::vector<ops::Segments*> segments();
};

// The last row of each text, whose hidden state is its embedding: int64 [texts]; of padding that of the last text.
at::Tensor last_rows(const Pack& pack);

// Appends its sizes, which nothing else can be taken for.
void append_shape(std::vector<int64_t>& to, const at::Tensor& tensor);

// Whether a pack holds the samples' frames, or whoever asks for it puts them into its slots.
enum class Frames { copied, apart };

class Connector; // connector/connector.h
class Encoder;   // encoder/encoder.h

// Who reads the frames of a pack: the tokens that the encoder makes of each, the connector, and the decoder's rows.
struct FrameReader {
  const Connector& connector;
  int64_t tokens_per_frame; // the most, where the encoder reads bytes
  int64_t rows_per_frame;
  bool reads_bytes = false;
  const Encoder* of_cells = nullptr; // where frames are cells of images
  RowPositionRules positions = {};   // of the decoder's rows
};

// Of what a sample has as frames, see Sample::frames; each once.
int64_t frames_of(const at::Tensor& frames);
// With all their copies, or of cells: the frame slots that the sample takes.
int64_t frames_of(const Sample& sample);
// The same on the device and in the type that an encoder reads.
at::Tensor encoder_input(const at::Tensor& frames, const at::TensorOptions& options);

// Of the text's tokens.
int64_t placeholders_of(const std::vector<int64_t>& tokens);
// Throws Error(data) for frames that are not what the encoder reads: images, or a text of as many bytes as it takes.
void require_readable(const at::Tensor& frames, const FrameReader& reader);
// Throws Error(data) unless the placeholders of a text fit the visual rows of the frames.
void require_placeholders(const std::vector<int64_t>& tokens, int64_t frames, int64_t rows_per_frame);
// Decoder rows of a text whose placeholders fit.
int64_t rows_of(const std::vector<int64_t>& tokens, int64_t frames, int64_t rows_per_frame);

// Of the visual tokens of a pack of these samples, each sample's; undefined where it has no frames.
std::vector<at::Tensor> visual_by_sample(const at::Tensor& visual, const std::vector<Sample>& samples,
                                         int64_t rows_per_frame);

// Those that the decoder reads, in the order of its rows.
ops::Value visual_rows(ops::Tape& tape, const ops::Value& visual, const Pack& pack);

// Throws Error(data) for what does not fit the capacity or makes no sense.
Pack make_pack(const std::vector<Sample>& samples, const Capacity& capacity, const FrameReader& reader,
               at::TensorOptions options, Frames frames = Frames::copied);

// How frames lie in a pack, for the maps of a connector.
struct FrameLayout {
  std::vector<int64_t> video_lengths; // frames of each sample that has any, in order
  int64_t frames = 0, slots = 0;      // used, and all
  int64_t sequences = 0;              // texts that the pack has room for
  int64_t longest_video = 0;
  int64_t tokens_per_frame = 0;
  // Of each encoder slot that is used, how many frame slots show its frame; and all encoder slots.
  std::vector<int64_t> copies;
  int64_t encoder_slots = 0;
  at::Device device = at::kCPU;

  bool repeats() const { return std::ssize(copies) < frames; }
};

// Segments one after the other; those that are not filled are empty, at the end of what is.
ops::Segments segments_of(const std::vector<int64_t>& lengths, int64_t capacity, int64_t rows, int64_t longest,
                          at::Device device);

} // namespace fvlm::model
