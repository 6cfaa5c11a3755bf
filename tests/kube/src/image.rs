//! Builds the container image: an OCI archive with one layer, from scratch, without a container engine.
//!
//! The same bytes for the same files: times are zero, entries are sorted, the compressor is ours. What is in it:
//! the program, a passwd file for its user, and an empty /tmp.

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// User and group of the image, the same as in the pod template: nobody else's on a usual machine, and not root.
pub const USER: u32 = 10_001;

/// What to build.
#[derive(Debug, Clone)]
pub struct Image {
    /// Full reference, such as `ghcr.io/example/segmentry:0.1.0`.
    pub reference: String,
    /// The static executable.
    pub program: PathBuf,
    /// Its place in the image, which is the entry point.
    pub entry_point: String,
    /// Fixed first arguments of the entry point.
    pub arguments: Vec<String>,
    /// Other names of it (links), such as `/kubectl-segmentry`.
    pub links: Vec<String>,
    /// Labels, as `org.opencontainers.image.version`.
    pub labels: Vec<(String, String)>,
}

impl Image {
    /// Writes the archive; `docker load`, `ctr images import`, `skopeo copy oci-archive:` and `kind load image-archive` read it.
    pub fn write(&self, archive: &Path) -> Result<()> {
        let mut tar = Tar::default();
        tar.folder("etc/", 0o755)?;
        tar.file(
            "etc/passwd",
            0o644,
            format!("root:x:0:0:root:/:/\nsegmentry:x:{USER}:{USER}::/:/\n").as_bytes(),
        )?;
        tar.folder("tmp/", 0o1777)?;
        let program = fs::read(&self.program).with_context(|| format!("read {}", self.program.display()))?;
        tar.file(self.entry_point.trim_start_matches('/'), 0o755, &program)?;
        for link in &self.links {
            tar.link(link.trim_start_matches('/'), &self.entry_point)?;
        }
        let layer = tar.finish();
        let diff_id = digest(&layer);
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&layer)?;
        let mut blobs = Blobs::default();
        let layer = blobs.add(encoder.finish()?, "application/vnd.oci.image.layer.v1.tar+gzip");
        let labels: serde_json::Map<String, Value> = self
            .labels
            .iter()
            .map(|(name, value)| (name.clone(), json!(value)))
            .collect();
        let entry_point: Vec<&String> = std::iter::once(&self.entry_point)
            .chain(&self.arguments)
            .collect();
        let config = blobs.add_json(
            &json!({
                "architecture": architecture(), "os": "linux",
                "config": {"Entrypoint": entry_point, "User": format!("{USER}:{USER}"), "WorkingDir": "/", "Labels": labels},
                "rootfs": {"type": "layers", "diff_ids": [diff_id]},
                "history": [{"created_by": "segmentry image builder"}],
            }),
            "application/vnd.oci.image.config.v1+json",
        )?;
        let manifest_type = "application/vnd.oci.image.manifest.v1+json";
        let mut manifest = blobs.add_json(
            &json!({"schemaVersion": 2, "mediaType": manifest_type, "config": config, "layers": [layer]}),
            manifest_type,
        )?;
        manifest["platform"] = json!({"architecture": architecture(), "os": "linux"});
        let tag = self.reference.rsplit_once(':').map_or("latest", |(_, tag)| tag);
        manifest["annotations"] =
            json!({"io.containerd.image.name": self.reference, "org.opencontainers.image.ref.name": tag});

        let mut tar = Tar::default();
        tar.file("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        tar.file(
            "index.json",
            0o644,
            &serde_json::to_vec(&json!({"schemaVersion": 2, "manifests": [manifest]}))?,
        )?;
        // What `docker load` of versions without the containerd store reads.
        let path = |blob: &Value| {
            format!(
                "blobs/sha256/{}",
                blob["digest"]
                    .as_str()
                    .unwrap_or_default()
                    .trim_start_matches("sha256:")
            )
        };
        let docker =
            json!([{"Config": path(&config), "RepoTags": [self.reference], "Layers": [path(&layer)]}]);
        tar.file("manifest.json", 0o644, &serde_json::to_vec(&docker)?)?;
        tar.folder("blobs/", 0o755)?;
        tar.folder("blobs/sha256/", 0o755)?;
        blobs.0.sort();
        for (hash, bytes) in &blobs.0 {
            tar.file(&format!("blobs/sha256/{hash}"), 0o644, bytes)?;
        }
        let mut out =
            BufWriter::new(File::create(archive).with_context(|| format!("create {}", archive.display()))?);
        out.write_all(&tar.finish())?;
        Ok(out.flush()?)
    }
}

/// The name that OCI gives to the architecture of this build.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(bytes))
}

#[derive(Default)]
struct Blobs(Vec<(String, Vec<u8>)>);

impl Blobs {
    fn add(&mut self, bytes: Vec<u8>, media_type: &str) -> Value {
        let hash = hex(&bytes);
        let descriptor =
            json!({"mediaType": media_type, "digest": format!("sha256:{hash}"), "size": bytes.len()});
        self.0.push((hash, bytes));
        descriptor
    }

    fn add_json(&mut self, value: &Value, media_type: &str) -> Result<Value> {
        Ok(self.add(serde_json::to_vec(value)?, media_type))
    }
}

/// A ustar archive in memory: fixed times and owners, names below 100 bytes.
#[derive(Default)]
struct Tar(Vec<u8>);

impl Tar {
    fn folder(&mut self, name: &str, mode: u32) -> Result<()> {
        self.entry(name, mode, b'5', "", &[])
    }

    fn file(&mut self, name: &str, mode: u32, bytes: &[u8]) -> Result<()> {
        self.entry(name, mode, b'0', "", bytes)
    }

    fn link(&mut self, name: &str, target: &str) -> Result<()> {
        self.entry(name, 0o777, b'2', target, &[])
    }

    fn entry(&mut self, name: &str, mode: u32, kind: u8, target: &str, bytes: &[u8]) -> Result<()> {
        let mut header = [0_u8; 512];
        put(&mut header, 0, 100, name)?;
        put(&mut header, 100, 8, &format!("{mode:07o}"))?;
        put(&mut header, 108, 8, "0000000")?;
        put(&mut header, 116, 8, "0000000")?;
        put(&mut header, 124, 12, &format!("{:011o}", bytes.len()))?;
        put(&mut header, 136, 12, "00000000000")?;
        put(&mut header, 148, 8, "        ")?;
        header[156] = kind;
        put(&mut header, 157, 100, target)?;
        put(&mut header, 257, 8, "ustar\x0000")?;
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        put(&mut header, 148, 8, &format!("{sum:06o}\0 "))?;
        self.0.extend_from_slice(&header);
        self.0.extend_from_slice(bytes);
        self.pad();
        Ok(())
    }

    fn pad(&mut self) {
        let whole = self.0.len().next_multiple_of(512);
        self.0.resize(whole, 0);
    }

    fn finish(mut self) -> Vec<u8> {
        let end = self.0.len() + 1024;
        self.0.resize(end, 0);
        self.0
    }
}

fn put(header: &mut [u8; 512], at: usize, room: usize, text: &str) -> Result<()> {
    let place = header[at..at + room]
        .get_mut(..text.len())
        .with_context(|| format!("{text:?} is too long for a tar header"))?;
    place.copy_from_slice(text.as_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use std::process::Command;

    fn image(folder: &Path) -> Image {
        let program = folder.join("program");
        fs::write(&program, b"#!/bin/true\n").unwrap();
        Image {
            reference: "localhost/x:1".to_owned(),
            program,
            entry_point: "/segmentry".to_owned(),
            arguments: Vec::new(),
            links: vec!["/kubectl-segmentry".to_owned()],
            labels: vec![("org.opencontainers.image.version".to_owned(), "1".to_owned())],
        }
    }

    #[test]
    fn the_same_program_gives_the_same_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let image = image(folder.path());
        let (one, other) = (folder.path().join("1.tar"), folder.path().join("2.tar"));
        image.write(&one).unwrap();
        image.write(&other).unwrap();
        assert_eq!(fs::read(one).unwrap(), fs::read(other).unwrap());
    }

    #[test]
    fn real_tar_unpacks_the_archive_and_every_blob_has_its_digest_as_name() {
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("image.tar");
        image(folder.path()).write(&archive).unwrap();
        let out = folder.path().join("out");
        fs::create_dir(&out).unwrap();
        assert!(
            Command::new("tar")
                .arg("-xf")
                .arg(&archive)
                .arg("-C")
                .arg(&out)
                .status()
                .unwrap()
                .success()
        );
        let index: Value = serde_json::from_slice(&fs::read(out.join("index.json")).unwrap()).unwrap();
        let read = |descriptor: &Value| {
            let digest = descriptor["digest"]
                .as_str()
                .unwrap()
                .trim_start_matches("sha256:");
            let bytes = fs::read(out.join("blobs/sha256").join(digest)).unwrap();
            assert_eq!(hex(&bytes), digest);
            assert_eq!(descriptor["size"], bytes.len());
            bytes
        };
        let manifest: Value = serde_json::from_slice(&read(&index["manifests"][0])).unwrap();
        let config: Value = serde_json::from_slice(&read(&manifest["config"])).unwrap();
        assert_eq!(config["config"]["User"], "10001:10001");
        let layer = folder.path().join("layer.tgz");
        fs::write(&layer, read(&manifest["layers"][0])).unwrap();
        let listed = Command::new("tar")
            .arg("-tvzf")
            .arg(&layer)
            .output()
            .unwrap()
            .stdout;
        let listed = String::from_utf8(listed).unwrap();
        assert!(
            listed.contains("-rwxr-xr-x") && listed.contains("segmentry"),
            "{listed}"
        );
        assert!(listed.contains("drwxrwxrwt"), "{listed}");
    }
}
