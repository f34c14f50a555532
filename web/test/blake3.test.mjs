import assert from "node:assert/strict";
import { test } from "node:test";

import { deriveKey, hash, keyedHash, toHex } from "../index.js";
import { random } from "./support.mjs";

// Published values of the BLAKE3 project (test_vectors.json, CC0): length of the input 0, 1, ... 250, 0, 1, ...; then
// hash, keyed hash and derived key, the first 32 bytes of each.
const KEY = new TextEncoder().encode("whats the Elvish word for friend");
const CONTEXT = "BLAKE3 2019-12-27 16:29:52 test vectors context";
const PUBLISHED = [
  [
    0,
    "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
    "92b2b75604ed3c761f9d6f62392c8a9227ad0ea3f09573e783f1498a4ed60d26",
    "2cc39783c223154fea8dfb7c1b1660f2ac2dcbd1c1de8277b0b0dd39b7e50d7d",
  ],
  [
    1,
    "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
    "6d7878dfff2f485635d39013278ae14f1454b8c0a3a2d34bc1ab38228a80c95b",
    "b3e2e340a117a499c6cf2398a19ee0d29cca2bb7404c73063382693bf66cb06c",
  ],
  [
    1023,
    "10108970eeda3eb932baac1428c7a2163b0e924c9a9e25b35bba72b28f70bd11",
    "c951ecdf03288d0fcc96ee3413563d8a6d3589547f2c2fb36d9786470f1b9d6e",
    "74a16c1c3d44368a86e1ca6df64be6a2f64cce8f09220787450722d85725dea5",
  ],
  [
    1024,
    "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7",
    "75c46f6f3d9eb4f55ecaaee480db732e6c2105546f1e675003687c31719c7ba4",
    "7356cd7720d5b66b6d0697eb3177d9f8d73a4a5c5e968896eb6a689684302706",
  ],
  [
    1025,
    "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444",
    "357dc55de0c7e382c900fd6e320acc04146be01db6a8ce7210b7189bd664ea69",
    "effaa245f065fbf82ac186839a249707c3bddf6d3fdda22d1b95a3c970379bcb",
  ],
  [
    2048,
    "e776b6028c7cd22a4d0ba182a8bf62205d2ef576467e838ed6f2529b85fba24a",
    "879cf1fa2ea0e79126cb1063617a05b6ad9d0b696d0d757cf053439f60a99dd1",
    "7b2945cb4fef70885cc5d78a87bf6f6207dd901ff239201351ffac04e1088a23",
  ],
  [
    2049,
    "5f4d72f40d7a5f82b15ca2b2e44b1de3c2ef86c426c95c1af0b6879522563030",
    "9f29700902f7c86e514ddc4df1e3049f258b2472b6dd5267f61bf13983b78dd5",
    "2ea477c5515cc3dd606512ee72bb3e0e758cfae7232826f35fb98ca1bcbdf273",
  ],
  [
    3073,
    "7124b49501012f81cc7f11ca069ec9226cecb8a2c850cfe644e327d22d3e1cd3",
    "68dede9bef00ba89e43f31a6825f4cf433389fedae75c04ee9f0cf16a427c95a",
    "72613c9ec9ff7e40f8f5c173784c532ad852e827dba2bf85b2ab4b76f7079081",
  ],
  [
    5121,
    "628bd2cb2004694adaab7bbd778a25df25c47b9d4155a55f8fbd79f2fe154cff",
    "6ccf1c34753e7a044db80798ecd0782a8f76f33563accaddbfbb2e0ea4b2d024",
    "b07f01e518e702f7ccb44a267e9e112d403a7b3f4883a47ffbed4b48339b3c34",
  ],
  [
    7168,
    "61da957ec2499a95d6b8023e2b0e604ec7f6b50e80a9678b89d2628e99ada77a",
    "b42835e40e9d4a7f42ad8cc04f85a963a76e18198377ed84adddeaecacc6f3fc",
    "11c37a112765370c94a51415d0d651190c288566e295d505defdad895dae2237",
  ],
  [
    8193,
    "bab6c09cb8ce8cf459261398d2e7aef35700bf488116ceb94a36d0f5f1b7bc3b",
    "954a2a75420c8d6547e3ba5b98d963e6fa6491addc8c023189cc519821b4a1f5",
    "af1e0346e389b17c23200270a64aa4e1ead98c61695d917de7d5b00491c9b0f1",
  ],
  [
    31744,
    "62b6960e1a44bcc1eb1a611a8d6235b6b4b78f32e7abc4fb4c6cdcce94895c47",
    "efa53b389ab67c593dba624d898d0f7353ab99e4ac9d42302ee64cbf9939a419",
    "39772aef80e0ebe60596361e45b061e8f417429d529171b6764468c22928e28e",
  ],
  [
    102400,
    "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085",
    "1c35d1a5811083fd7119f5d5d1ba027b4d01c0c6c49fb6ff2cf75393ea5db4a7",
    "4652cff7a3f385a6103b5c260fc1593e13c778dbe608efb092fe7ee69df6e9c6",
  ],
];
const LONG_1025 =
  "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444f4c4a22b4b399155358a994e52bf255de60035742ec71bd08ac2" +
  "75a1b51cc6bfe332b0ef84b409108cda080e6269ed4b3e2c3f7d722aa4cdc98d16deb554e5627be8f955c98e1d5f9565a9194cad0c4285f93700" +
  "062d9595adb992ae68ff12800ab67a";

const input = (length) => Uint8Array.from({ length }, (_, i) => i % 251);

test("blake3 gives the published digests in all three modes", () => {
  for (const [length, plain, keyed, derived] of PUBLISHED) {
    assert.equal(toHex(hash(input(length))), plain, `hash of ${length}`);
    assert.equal(toHex(keyedHash(KEY, input(length))), keyed, `keyed hash of ${length}`);
    assert.equal(toHex(deriveKey(CONTEXT, input(length))), derived, `derived key of ${length}`);
  }
});

test("blake3 gives the published extended output", () => {
  assert.equal(toHex(hash(input(1025), 131)), LONG_1025);
});

test("blake3 reads a view into a larger buffer as its own bytes", () => {
  const { bytes } = random(1);
  const whole = bytes(3000);
  assert.deepEqual(hash(whole.subarray(5, 2500)), hash(whole.slice(5, 2500)));
});

test("blake3 refuses a key of another length", () => {
  assert.throws(() => keyedHash(KEY.subarray(1), input(1)), /32 bytes, got 31/);
});
