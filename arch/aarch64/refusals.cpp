// The table, in the order of the forms'.
#include "arch/aarch64/refusals.hpp"

namespace probed::arch::aarch64 {
namespace {

// What merely faults (udf, a load from nowhere, a system register that isn't there) is not here: it faults in the copy
// just as it would have, and the tracer maps the pc back.
constexpr RefusedForm kForms[] = {
    {.what = "reserved and unallocated words, where what the architecture has allocated so far may depend on the pc",
     .example = "00 00 00 02",
     .refusal = Refusal::undecodable,
     .why = "what isn't known can't be moved: a copy of it might do something else"},
    {.what = "movprfx",
     .example = "20 bc 20 04",
     .refusal = Refusal::sequence,
     .why = "the processor may fuse it with the instruction behind it, which it must directly precede"},
    {.what = "paciasppc, pacibsppc, autiasppc, retaasppc and the others of FEAT_PAuth_LR",
     .example = "fe a3 c1 da",
     .refusal = Refusal::position,
     .why = "they sign with, or check against, the address that they stand at, so that a copy makes other signatures"},
    {.what = "cb<cc>, cbb<cc>, cbh<cc> (FEAT_CMPBR)",
     .example = "40 00 01 74",
     .refusal = Refusal::unsupported,
     .why = "a copy needs a branch of another reach, which isn't written yet"},
    {.what = "eret, eretaa, eretab, drps, hvc, smc, hlt, dcps1 to dcps3",
     .example = "e0 03 9f d6",
     .refusal = Refusal::privileged,
     .why = "it always faults in user space, so a probe there tells nothing that the signal doesn't"},
    {.what = "brk",
     .example = "00 00 20 d4",
     .refusal = Refusal::breakpoint,
     .why = "a probe in its place would swallow a trap that the program or its debugger waits for"},
    {.what = "pacm",
     .example = "ff 24 03 d5",
     .refusal = Refusal::sequence,
     .why = "it changes what the instruction behind it signs"},
    {.what = "ldxr, ldaxr, ldxp, ldaxp, ldtxr, ldatxr; stxr, stlxr, stxp, stlxp, sttxr, stltxr",
     .example = "41 fc 5f c8",
     .refusal = Refusal::exclusive,
     .why = "a trap clears the exclusive monitor, so that the store fails and the program tries again, for ever"},
    {.what = "cpyp, cpym, cpye, setp, setm, sete and their kin (FEAT_MOPS)",
     .example = "40 04 01 19",
     .refusal = Refusal::sequence,
     .why = "they come in threes, and the kernel moves the pc from one to another when a thread changes processors"},
    {.what = "blraaz x30, blraa with x30",
     .example = "df 0b 3f d6",
     .refusal = Refusal::unsupported,
     .why = "a copy writes x30 before the branch reads it",
     .by = RefusedBy::copy},
    {.what = "what stands between an exclusive load and its store",
     .example = "41 fc 5f c8 20 04 00 91 40 fc 02 c8",
     .refusal = Refusal::exclusive,
     .why = "a trap clears the exclusive monitor, so that the store fails and the program tries again, for ever",
     .by = RefusedBy::context,
     .at = 4},
    {.what = "what stands behind movprfx or pacm",
     .example = "20 bc 20 04 20 00 20 04",
     .refusal = Refusal::sequence,
     .why = "the instruction in front of it means nothing without it",
     .by = RefusedBy::context,
     .at = 4},
    {.what = "a word that a literal load of the same function reads",
     .example = "40 00 00 58 c0 03 5f d6 1f 20 03 d5 1f 20 03 d5",
     .refusal = Refusal::undecodable,
     .why = "it is data, which a breakpoint would change",
     .by = RefusedBy::context,
     .at = 8},
};

}  // namespace

std::span<const RefusedForm> refused_forms() { return kForms; }

}  // namespace probed::arch::aarch64
