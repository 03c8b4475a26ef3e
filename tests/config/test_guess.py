"""Unknown keys get the answer that people who bring them need."""

import pytest

from tests.config.helpers import MINIMAL, told

LOCAL = {
    # From vLLM and its kv-transfer config.
    "kv: {remote_pull_threshold: 1}": "`remote_pull_threshold` is not a key of any vLLM release; "
    "did you mean `recompute_threshold`?",
    "remote_pull_threshold: 1": "`remote_pull_threshold` is not a key of any vLLM release; "
    "did you mean `kv.recompute_threshold`?",
    "kv: {kv_recompute_threshold: 1}": "`kv_recompute_threshold` is vLLM's name; "
    "here it is `recompute_threshold`",
    "kv: {decoder_kv_blocks_ttl: 1}": "`decoder_kv_blocks_ttl` is vLLM's name; "
    "here it is `decoder_ttl`",
    "decode: {decoder_kv_blocks_ttl: 1}": "`decoder_kv_blocks_ttl` is vLLM's name; "
    "here it is `kv.decoder_ttl`",
    "kv: {bidirectional_kv_xfer: true}": "`bidirectional_kv_xfer` is vLLM's name; "
    "here it is `bidirectional`",
    "prefill: {kv_rank: 0}": "`kv_rank` is refused by current vLLM, and pdctl needs no such key; "
    "remove it",
    "kv: {kv_role: kv_both}": "`kv_role` is written by pdctl from `kv`; remove it",
    "kv: {engine_id: x}": "`engine_id` is never set by hand: pdctl makes a new one at every start, "
    "because a fixed one breaks reuse after a restart; remove it",
    "prefill: {no_enable_prefix_caching: true}": "`no_enable_prefix_caching` is vLLM's name; "
    "here it is `false` at `prefix_caching`",
    "engine: {vllm_version: '1'}": "`vllm_version` is not a key of `engine`; did you mean `vllm`?",
    # Short names and other spellings.
    "model2: 1\nprefill: {}": "`model2` is not a key of the top level; did you mean `model`?",
    "tp: 8": "`tp` is not a key of the top level; did you mean `model.tensor_parallel_size`, "
    "`prefill.tensor_parallel_size` or `decode.tensor_parallel_size`?",
    "prefill: {tp: 8}": "`tp` is not a key of `prefill`; did you mean `tensor_parallel_size`?",
    "prefill: {gpu-memory-utilization: 0.9}": "`gpu-memory-utilization` is not a key of `prefill`; "
    "did you mean `gpu_memory_utilization`?",
    "prefill: {--max-num-seqs: 9}": "`--max-num-seqs` is not a key of `prefill`; "
    "did you mean `max_num_seqs`?",
    "kv: {Bidirectional: true}": "`Bidirectional` is not a key of `kv`; "
    "did you mean `bidirectional`?",
    "kv: {bidirectionl: true}": "`bidirectionl` is not a key of `kv`; "
    "did you mean `bidirectional`?",
    # Known keys in the wrong section.
    "ttl: 480": "`ttl` is not a key of the top level; did you mean `kv.decoder_ttl` "
    "or `router.ttl`?",
    "kv: {ttl: 480}": "`ttl` is not a key of `kv`; did you mean `decoder_ttl`?",
    "kv: {max_num_seqs: 9}": "`max_num_seqs` is not a key of `kv`; did you mean "
    "`prefill.max_num_seqs` or `decode.max_num_seqs`?",
    "router: {decoder_ttl: 9}": "`decoder_ttl` is not a key of `router`; "
    "did you mean `kv.decoder_ttl`?",
    "router: {idle: 9}": "`idle` is not a key of `router`; did you mean `router.limits.idle`?",
    "router: {recompute_treshold: 9}": "`recompute_treshold` is not a key of `router`; "
    "did you mean `kv.recompute_threshold`?",
    "router: {api_key: sk-1}": "`api_key` never stands in the file; did you mean `api_keys_file`?",
    # Nothing like it.
    "kv: {zebra: 1}": "`zebra` is not a key of `kv` (keys there: bidirectional, "
    "recompute_threshold, decoder_ttl, lease_duration, backends, buffer_device, "
    "load_failure_policy, layout)",
    'kv: {"a\\nb": 1}': "`a�b` is not a key of `kv` (keys there: bidirectional, "
    "recompute_threshold, decoder_ttl, lease_duration, backends, buffer_device, "
    "load_failure_policy, layout)",
}


@pytest.mark.parametrize(("line", "words"), LOCAL.items())
def test_unknown_key(line: str, words: str) -> None:
    place, _, rest = told(MINIMAL + line).partition(" ")
    assert rest.partition(": ")[2] == words
    column = line.index("{") + 2 if "{" in line.split("\n")[0] else 1
    assert place == f"4:{column}"


SSH = """\
name: x
model: {id: a}
target:
  kind: ssh
  hosts: {prefill: [{address: p, KEY: 1}], decode: [{address: d}]}
"""


def test_keys_of_hosts() -> None:
    assert told(SSH.replace("KEY", "rolle")) == (
        "5:34 target.hosts.prefill[0].rolle: `rolle` is not a key of `target.hosts.prefill[0]` "
        "(keys there: address, private_address, user, ssh_port, key_file, port, "
        "side_channel_port, gpus, cell)"
    )
    assert told(SSH.replace("KEY", "adress")) == (
        "5:34 target.hosts.prefill[0].adress: `adress` is not a key of "
        "`target.hosts.prefill[0]`; did you mean `address`?"
    )


def test_keys_of_another_kind_of_target() -> None:
    assert told(SSH.replace("KEY: 1", "") + "  region: us-west-2\n") == (
        "6:3 target.region: `region` is not a key of `target` (it is one of `kind: ec2`)"
    )
