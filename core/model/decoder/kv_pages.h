// KvPages: the keys and values of many sequences in pages of a few rows, as the decoder reads and writes them. Which
// page belongs to which sequence is not known here (core/infer decides): a pass is told where its rows go and which
// pages each sequence reads, so that several sequences can read the same page.
//
// A recurrent layer carries a state from row to row instead. Each sequence has one slot for its states in all such
// layers, and a pass goes on from what the last one has left there: it has to have each row once, and in order.
#pragma once
#include "model/part.h"
#include "model/row_positions.h"

#include <algorithm>
#include <compare>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace fvlm::model {

struct KvPages {
  // [pages, kv_heads, page_rows, 2, head_dim]: key and value of a row side by side, and rows of a head, which are read
  // together. Of a layer without attention [pages, page_rows, width]: what later rows read of each row.
  std::vector<at::Tensor> layers;
  int64_t page_rows = 0;
  // By layer: tensors [slots, ...] of one that carries a state, none of others. Slot 0 is the padding's.
  std::vector<std::vector<at::Tensor>> states;

  // [pages, page_rows, kv_heads, head_dim]
  at::Tensor keys(size_t layer) const { return layers[layer].select(3, 0).transpose(1, 2); }
  at::Tensor values(size_t layer) const { return layers[layer].select(3, 1).transpose(1, 2); }
  int64_t bytes() const; // of all
};

// The rows of one pass, listed on the host: those of one sequence after those of another.
struct PassRows {
  // `has_states`: whether the decoder carries states, so that it has to know where each sequence begins.
  explicit PassRows(int64_t page_rows, bool has_states = false) : page_rows(page_rows), has_states(has_states) {}

  // The rows appended from here on belong to a sequence with these pages, which hold its rows in order, with this slot,
  // which has its states, and with this adapter of the model; 0: none.
  void begin_sequence(std::span<const int32_t> its_pages, int32_t slot = 0, int32_t adapter = 0) {
    pages.emplace_back(its_pages.begin(), its_pages.end());
    slots.push_back(slot);
    adapters.push_back(adapter);
    begins.push_back(static_cast<int32_t>(size()));
  }
  // `token`: to embed; 0 where the row comes from elsewhere. `position`: of the row in its sequence. `along`: by which
  // its query and key are rotated. `last`: of the last row of the sequence that it attends to, its own or one behind
  // it in this pass. `first`: of the first one that it attends to although it is outside of a window.
  void append(int64_t token, int64_t position, const RowPosition& along, int64_t last, int64_t first);
  void append(int64_t token, int64_t position) {
    append(token, position, equal_positions(position), position, position);
  }
  // The logits of the last row appended are wanted.
  void mark_output() { outputs.push_back(static_cast<int32_t>(size() - 1)); }
  int64_t size() const { return std::ssize(tokens); }
  // Whether each row is the only one of its sequence, is rotated by its place in it, and no sequence reads what another
  // one writes in this pass: what an attention that appends expects.
  bool are_independent() const;
  // The most rows that one sequence has.
  int64_t longest_run() const;
  // Whether sequences have different adapters.
  bool are_mixed() const { return std::ranges::adjacent_find(adapters, std::not_equal_to()) != adapters.end(); }

  int64_t page_rows;
  bool has_states;
  std::vector<int32_t> tokens, positions, sequences; // of each row
  std::vector<int32_t> lengths;                      // of each row: how many rows of its sequence it attends to
  std::vector<int32_t> first;                        // of each row, see append()
  bool has_ranges = false;                           // whether some row attends to one behind it, or outside of windows
  std::array<std::vector<int32_t>, most_row_axes> rotary; // of each row, on each axis
  bool has_axes = false;                                  // whether some row has not the same one on all axes
  std::vector<int32_t> places;                            // of each row, among all rows of all pages
  std::vector<int32_t> outputs;                           // rows whose logits are wanted
  std::vector<std::vector<int32_t>> pages;                // of each sequence
  std::vector<int32_t> slots, begins;                     // of each sequence: where its states are; its first row here
  std::vector<int32_t> adapters;                          // of each sequence
};

// The same as tensors, each padded to a size class. Padding rows attend to nothing and write to the padding
// page, which is page 0 and no sequence's.
struct StagedRows {
  struct Sizes {
    int64_t rows, outputs, sequences, pages; // pages: of the longest sequence
    bool independent;                        // PassRows::are_independent()
    bool has_axes = false;                   // PassRows::has_axes
    bool has_ranges = false;                 // PassRows::has_ranges
    int64_t longest_run = 0;                 // PassRows::longest_run(), rounded up; 0 where there are no states
    bool mixed = false;                      // PassRows::are_mixed()
    auto operator<=>(const Sizes&) const = default;
    // `padded`: the number of rows with padding; 0: the size class.
    static Sizes of(const PassRows& rows, int64_t padded = 0);
    // A few sizes for passes that vary a lot and are captured all the same, since a size that is new holds up all that
    // wait: powers of two, of sequences and outputs, which cost next to nothing, powers of four; from 2,048 rows on
    // size classes.
    static Sizes coarse(const PassRows& rows);
  };
  // One copy to the device.
  StagedRows(const PassRows& rows, at::Device device, const Sizes& sizes);
  StagedRows(const PassRows& rows, at::Device device, int64_t padded = 0)
      : StagedRows(rows, device, Sizes::of(rows, padded)) {}
  // Replaces the rows by others of the same sizes, in the same memory.
  void restage(const PassRows& rows);

  at::Tensor tokens, sequences, lengths; // int32 [rows]; lengths: of the keys that a row attends to
  at::Tensor first;                      // int32 [rows]: PassRows::first, where has_ranges()
  at::Tensor indices() const;            // int32 [rows]: of each row in its sequence; padding: anything below its rows
  at::Tensor positions;                  // as ops::Segments has them
  at::Tensor places;                     // int64 [2, rows]: the page, and the row in it
  at::Tensor outputs;                    // int32: rows whose logits are wanted, then padding
  at::Tensor page_table;                 // int32 [sequences, pages of the longest]
  bool are_independent() const { return sizes_.independent; }
  bool has_ranges() const { return sizes_.has_ranges; }

  at::Tensor adapters; // int32 [rows]: of PassRows::are_mixed(), those of the rows' sequences; else undefined

  // Where PassRows::has_states, for layers that carry a state; undefined elsewhere. Sequence s has the rows from
  // row_bounds[s] to row_bounds[s + 1]. Those that are padding have none; rows that are padding have no sequence.
  at::Tensor row_bounds; // int32 [sequences + 1]
  at::Tensor slots;      // int32 [sequences]; of padding 0
  at::Tensor starts;     // int32 [sequences]: 1 where the first of these rows is the sequence's, whose state is zeros
  int64_t longest_run() const { return sizes_.longest_run; } // no sequence has more rows; 1: of a row each

 private:
  Sizes sizes_;
  at::Tensor indices_; // where has_ranges()
  at::Tensor memory_;  // all, one after the other
};

} // namespace fvlm::model
