// See native_cases.hpp.
#include "tests/arch/aarch64/native_cases.hpp"

#include <link.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "arch/aarch64/decode.hpp"
#include "arch/aarch64/forms.hpp"
#include "arch/aarch64/operands.hpp"
#include "arch/aarch64/word.hpp"

namespace probed::test {

using namespace arch::aarch64;
using arch::Refusal;

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? std::strtoull(text, nullptr, 0) : otherwise;
}

namespace {

std::mt19937_64& random_numbers() {
  static std::mt19937_64 engine = [] {
    const std::uint64_t seed = number_from("PROBED_SEED", std::random_device{}());
    std::printf("PROBED_SEED=%llu\n", static_cast<unsigned long long>(seed));
    return std::mt19937_64(seed);
  }();
  return engine;
}
// What would not do the same twice (clocks, random numbers and tags, waiting), changes what this program itself needs
// (the thread pointer, the vector length) or has state that a signal frame doesn't show (SVE, SME).
bool is_repeatable(std::uint32_t word) {
  constexpr std::uint32_t kThreadPointer = 0xd53bd040, kFlags = 0xd51b4200;
  if ((word & 0x1e000000) == 0x04000000 || (word & 0x1e000000) == 0x00000000) return (word & 0xffff0000) == 0;
  if ((word & 0xffe0fc00) == 0x9ac01000) return false;  // irg
  if ((word & 0xff000000) != 0xd5000000) return true;
  if ((word & 0xfffff01f) == 0xd503201f) return (word & 0xfffffbff) != 0xd503205f;  // hints, but for wfe and wfi
  if ((word & 0xfffff000) == 0xd5033000) return true;                               // barriers, clrex
  return (word & ~0x1fu) == (kThreadPointer & ~0x1fu) || (word & ~0x1fu) == kFlags;
}

// A branch to itself may never end: about one random word in a million is one.
bool ends(std::uint32_t word) { return decode(word_bytes(word), kOriginal).target != kOriginal; }

// A literal that is the load's own word, or begins at most 12 bytes before it: what is read is whatever stands there.
bool reads_itself(std::uint32_t word) {
  constexpr std::uint64_t kLongest = 16;
  const Form form = form_of(word).form;
  const bool loads =
      form == Form::load_literal || form == Form::load_signed_literal || form == Form::load_vector_literal;
  return loads && kOriginal - literal_address(word, kOriginal) < kLongest;
}

std::vector<std::uint32_t> real_code() {
  std::vector<std::uint32_t> code;
  const auto add = [](dl_phdr_info* object, std::size_t, void* to) {
    for (unsigned i = 0; i < object->dlpi_phnum; ++i) {
      const auto& segment = object->dlpi_phdr[i];
      if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) continue;
      const auto* const words = reinterpret_cast<const std::uint32_t*>(object->dlpi_addr + segment.p_vaddr);
      auto& all = *static_cast<std::vector<std::uint32_t>*>(to);
      all.insert(all.end(), words, words + segment.p_filesz / 4);
    }
    return 0;
  };
  dl_iterate_phdr(add, &code);
  return code;
}

}  // namespace

std::uint64_t below(std::uint64_t limit) { return random_numbers()() % limit; }
std::uint32_t random_word() { return static_cast<std::uint32_t>(random_numbers()()); }
unsigned case_count() { return static_cast<unsigned>(number_from("PROBED_CASES", 2'500)); }

// Addresses of data, small numbers, and anything.
std::uint64_t random_value() {
  switch (below(4)) {
    case 0: return below(256);
    case 1: return random_numbers()();
    default: return kDataBegin + kDataSize / 4 + below(kDataSize / 2) / 16 * 16;
  }
}

CpuState random_state() {
  CpuState state;
  for (std::uint64_t& value : state.regs.x) value = random_value();
  state.regs.stack_pointer = kDataBegin + kDataSize / 2 + below(64) * 16;
  state.regs.program_counter = kOriginal;
  state.regs.pstate = below(16) << 28 | below(4) << 10;
  for (auto& vector : state.vectors) vector = {random_numbers()(), random_numbers()()};
  return state;
}

const std::vector<std::uint8_t>& random_data() {
  static const std::vector<std::uint8_t> data = [] {
    std::vector<std::uint8_t> bytes(kDataSize);
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random_word());
    return bytes;
  }();
  return data;
}

CpuTrial run(const CpuState& in, const std::vector<std::uint8_t>& data) {
  std::ranges::copy(data, NativeCpu::data().begin());
  CpuTrial trial;
  trial.outcome = NativeCpu::run(in);
  trial.outcome.state.regs.pstate &= kSeenState;
  trial.data.assign(NativeCpu::data().begin(), NativeCpu::data().end());
  return trial;
}

std::string differences(const CpuTrial& a, const CpuTrial& b) {
  std::string out;
  const auto differ = [&out](const std::string& what, std::uint64_t x, std::uint64_t y) {
    char line[100];
    std::snprintf(line, sizeof line, "%s %llx, not %llx; ", what.c_str(), static_cast<unsigned long long>(y),
                  static_cast<unsigned long long>(x));
    if (x != y) out += line;
  };
  const CpuState &s = a.outcome.state, &t = b.outcome.state;
  for (unsigned i = 0; i < s.regs.x.size(); ++i) differ("x" + std::to_string(i), s.regs.x[i], t.regs.x[i]);
  differ("sp", s.regs.stack_pointer, t.regs.stack_pointer);
  differ("pc", s.regs.program_counter, t.regs.program_counter);
  differ("pstate", s.regs.pstate, t.regs.pstate);
  for (unsigned i = 0; i < s.vectors.size(); ++i)
    for (const unsigned half : {0, 1}) differ("v" + std::to_string(i), s.vectors[i][half], t.vectors[i][half]);
  differ("fpsr", s.fpsr, t.fpsr);
  differ("fpcr", s.fpcr, t.fpcr);
  differ("signal", a.outcome.signal, b.outcome.signal);
  differ("fault address", a.outcome.address, b.outcome.address);
  if (a.data == b.data) return out;
  const std::uint64_t below_sp = s.regs.stack_pointer - kDataBegin - 16;
  for (std::size_t i = 0; i < a.data.size(); ++i)
    if (a.data[i] != b.data[i] && i - below_sp >= 16) differ("byte " + std::to_string(i), a.data[i], b.data[i]);
  return out;
}

bool may_run(std::uint32_t word) {
  const FormRow& form = form_of(word);
  return ends(word) && !reads_itself(word) && form.refusal == Refusal::none && form.form != Form::system_call &&
         is_repeatable(word);
}

std::uint32_t word_of_any_form() {
  static const std::vector<FormRow> wanted = [] {
    std::vector<FormRow> rows;
    for (const FormRow& form : forms())
      if (form.refusal == Refusal::none && form.form != Form::plain) rows.push_back(form);
    return rows;
  }();
  const FormRow& form = wanted[below(wanted.size())];
  return form.value | (random_word() & ~form.mask);
}

std::uint32_t word_of_real_code() {
  static const std::vector<std::uint32_t> code = real_code();
  return code[below(code.size())];
}

}  // namespace probed::test
