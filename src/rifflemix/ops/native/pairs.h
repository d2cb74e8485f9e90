// Group sort of pairs of tokens: one comparison and one exchange, on runs of channels.

#pragma once

#include "permutation.h"

namespace rifflemix::permutation {

// Inputs and outputs of a pair of tokens.
template <class Bits>
struct Pair {
  const Bits *first, *second;
  Bits *first_out, *second_out;

  RIFFLEMIX_INLINE Pair from(int64_t channel) const {
    return {first + channel, second + channel, first_out + channel, second_out + channel};
  }
};

template <class Bits>
constexpr int kPairLanes = kVectorBytes / sizeof(Bits);

// Source of the exchange mask: compare the values now, or repeat stored swaps.
enum class Swaps { kDecided, kRepeated };

template <class Bits>
struct Decision {
  const Bits* flip;  // sign bit for descending channels; one vector longer than the channels
  Bits opposite;     // all ones if the reference channel is out of order, else 0
  Format<Bits> format;
};

// Returns all ones in lanes with the second value before the first in the sorted order.
template <class Bits, class Lanes = Vector<Bits, kPairLanes<Bits>>>
RIFFLEMIX_INLINE Lanes out_of_order(const Lanes& first, const Lanes& second,
                                    const Format<Bits>& format) {
  return ordered(second, format) < ordered(first, format);
}
template <class Bits>
RIFFLEMIX_INLINE Bits out_of_order(Bits first, Bits second, const Format<Bits>& format) {
  using Lanes = Vector<Bits, kPairLanes<Bits>>;
  return out_of_order<Bits>(Lanes{} + first, Lanes{} + second, format)[0];
}

template <Swaps kSwaps, class Bits>
RIFFLEMIX_INLINE void exchange_vector(const Pair<Bits>& pair, const Decision<Bits>& decision,
                                      uint8_t* swaps) {
  using Lanes = Vector<Bits, kPairLanes<Bits>>;
  using Bytes = Vector<uint8_t, kPairLanes<Bits>>;
  const Lanes first = load<Lanes>(pair.first), second = load<Lanes>(pair.second);
  Lanes swap;
  if constexpr (kSwaps == Swaps::kDecided) {
    const Lanes flip = load<Lanes>(decision.flip);
    swap = out_of_order<Bits>(first ^ flip, second ^ flip, decision.format) ^ decision.opposite;
    const Bytes bytes = __builtin_convertvector(swap & 1, Bytes);
    std::memcpy(swaps, &bytes, sizeof(bytes));
  } else {
    swap = -__builtin_convertvector(load<Bytes>(swaps), Lanes);
  }
  const Lanes difference = (first ^ second) & swap;
  const Lanes first_out = first ^ difference, second_out = second ^ difference;
  std::memcpy(pair.first_out, &first_out, sizeof(first_out));
  std::memcpy(pair.second_out, &second_out, sizeof(second_out));
}

// Exchanges `count` channels vector by vector; the remainder is copied to a buffer and back.
template <Swaps kSwaps, class Bits>
RIFFLEMIX_INLINE void exchange_pair(const Pair<Bits>& pair, Decision<Bits> decision, int64_t count,
                                    uint8_t* swaps) {
  constexpr int64_t lanes = kPairLanes<Bits>;
  int64_t c = 0;
  for (; c + lanes <= count; c += lanes) {
    exchange_vector<kSwaps>(pair.from(c), decision, swaps + c);
    decision.flip += lanes;
  }
  if (c == count) return;
  Bits first[lanes] = {}, second[lanes] = {};
  uint8_t bytes[lanes] = {};
  std::copy(pair.first + c, pair.first + count, first);
  std::copy(pair.second + c, pair.second + count, second);
  if (kSwaps == Swaps::kRepeated) std::copy(swaps + c, swaps + count, bytes);
  exchange_vector<kSwaps>(Pair<Bits>{first, second, first, second}, decision, bytes);
  std::copy(first, first + (count - c), pair.first_out + c);
  std::copy(second, second + (count - c), pair.second_out + c);
  if (kSwaps == Swaps::kDecided) std::copy(bytes, bytes + (count - c), swaps + c);
}

// Copies a pair with padding without an exchange; padded positions become zero.
template <Swaps kSwaps, class Bits>
RIFFLEMIX_INLINE void keep_pair(const Pair<Bits>& pair, bool first_padded, bool second_padded,
                                int64_t count, uint8_t* swaps) {
  for (int64_t c = 0; c < count; ++c) {
    pair.first_out[c] = first_padded ? Bits{0} : pair.first[c];
    pair.second_out[c] = second_padded ? Bits{0} : pair.second[c];
  }
  if (kSwaps == Swaps::kDecided) std::fill(swaps, swaps + count, uint8_t{0});
}

// The directions of the channels, and a scratch row of swaps per slot if swaps are not returned.
template <class Bits>
struct PairScratch {
  Bits* flip;
  uint8_t* unused;

  PairScratch(const Problem& p, Arena& arena)
      : flip(arena.take<Bits>(p.channels + kPairLanes<Bits>)),
        unused(arena.take<uint8_t>(p.swaps == nullptr ? p.useful_threads() * p.channels : 0)) {}

  void prepare(const Problem& p) const {
    std::fill(flip, flip + p.channels + kPairLanes<Bits>, Bits{0});
    for (int64_t c = 0; c < p.channels && p.descending != nullptr; ++c) {
      flip[c] = p.descending[c] ? kSign<Bits> : Bits{0};
    }
  }
  // Swaps of pair k, counted over all samples.
  RIFFLEMIX_INLINE uint8_t* swaps(const Problem& p, int64_t k, int64_t slot) const {
    return p.swaps == nullptr ? unused + slot * p.channels : p.swaps + k * p.channels;
  }
};

// Exchanges channels channel..channel+count-1 of pair k of sample b; `pair` points to them.
// opposite(head) is all ones if the head's reference channel is out of order.
template <Swaps kSwaps, class Bits, class Opposite>
RIFFLEMIX_INLINE void exchange_channels(const Problem& p, const PairScratch<Bits>& scratch,
                                        int64_t b, int64_t k, int64_t channel, int64_t count,
                                        const Pair<Bits>& pair, int64_t slot,
                                        const Opposite& opposite) {
  uint8_t* swaps = scratch.swaps(p, b * (p.length / 2) + k, slot) + channel;
  const bool first_padded = p.padded(b, 2 * k), second_padded = p.padded(b, 2 * k + 1);
  if (first_padded || second_padded) {
    return keep_pair<kSwaps>(pair, first_padded, second_padded, count, swaps);
  }
  const int64_t width = p.heads > 0 ? p.channels / p.heads : p.channels;
  for (int64_t low = 0, high; low < count; low = high) {
    const int64_t head = (channel + low) / width;
    high = std::min(count, (head + 1) * width - channel);
    const Bits turned = p.heads > 0 ? opposite(head) : Bits{0};
    const Decision<Bits> decision{scratch.flip + channel + low, turned, p.format<Bits>()};
    exchange_pair<kSwaps>(pair.from(low), decision, high - low, swaps + low);
  }
}

}  // namespace rifflemix::permutation
