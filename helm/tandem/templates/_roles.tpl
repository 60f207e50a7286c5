{{/*
What the binary and the design fix for the eight services, for tx-executors and for followers; values.yaml has what an
operator chooses.

  command  the subcommand of the binary
  kind     what runs it; with a directory of its own (data) it may have a volume claim
  ports    by name, as the binary opens them where it is told nothing else
  calls    whom it calls over gRPC: the edges of the design, from which the network policies and the
           addresses that a service is told follow
  peers    the port at which other nodes reach it. Such a service has the node key, which is for one
           pod at a time
  copies   whether its data is a copy that can be had again, so that it goes with its pod
  offBus   whether it takes no part in NATS
  headless whether its name leads to the pods themselves: of several pods a client then gets all
           addresses. Names of services that are one pod lead to an address that stays, so that a
           caller finds a new pod at once and need not wait until a DNS answer has expired
*/}}
{{- define "tandem.roles" -}}
storage-writer:
  command: storage-writer
  kind: StatefulSet
  data: true
  ports: { grpc: 9600 }
  calls: {{ if include "tandem.severalWriters" . }}[storage-writer]{{ else }}[]{{ end }}
multiproof-workers:
  command: multiproof-worker
  kind: Deployment
  ports: { grpc: 9601 }
  calls: [storage-writer]
  headless: true
  scalable: true
blob-validator:
  command: blob-validator
  kind: Deployment
  ports: { grpc: 9603 }
  calls: []
  headless: true
  scalable: true
peer-table:
  command: peer-table
  kind: Deployment
  data: true
  ports: { grpc: 9602 }
  calls: []
discovery:
  command: discovery
  kind: Deployment
  peers: { port: discovery, protocol: UDP }
  ports: {}
  calls: [peer-table]
peer-sessions:
  command: peer-sessions
  kind: Deployment
  peers: { port: sessions, protocol: TCP }
  ports: { grpc: 9604 }
  calls: [storage-writer, peer-table]
tx-pool:
  command: tx-pool
  kind: Deployment
  data: true
  ports: { grpc: 9605 }
  calls: [storage-writer, blob-validator, peer-sessions]
executor:
  command: executor
  kind: Deployment
  ports: { engine: 8551, http: 8545 }
  calls: [storage-writer, multiproof-workers, blob-validator, peer-sessions, tx-pool, tx-executor]
tx-executor:
  command: tx-executor
  kind: Deployment
  offBus: true
  ports: { grpc: 9606 }
  calls: []
  headless: true
  scalable: true
follower:
  command: follower
  kind: StatefulSet
  data: true
  copies: true
  offBus: true
  ports: { http: 8545 }
  calls: [storage-writer, tx-pool]
  scalable: true
{{- end -}}

{{/* "true" where one of several storage-writers leads, and the others keep copies. */}}
{{- define "tandem.severalWriters" -}}
{{- if gt (int (index .Values.services "storage-writer").replicas) 1 -}}true{{- end -}}
{{- end -}}

{{/* URL of the calls of a service; of several storage-writers, that of each pod, with commas between them.
(dict "root" $ "name" NAME) */}}
{{- define "tandem.urlsOf" -}}
{{- $scheme := include "tandem.scheme" .root -}}
{{- $service := printf "%s-%s" (include "tandem.fullname" .root) .name -}}
{{- $port := index (include "tandem.roles" .root | fromYaml) .name "ports" "grpc" -}}
{{- if and (eq .name "storage-writer") (include "tandem.severalWriters" .root) -}}
{{- $urls := list -}}
{{- range $index := until (int (index .root.Values.services "storage-writer").replicas) -}}
{{- $urls = append $urls (printf "%s://%s-%d.%s-pods:%v" $scheme $service $index $service $port) -}}
{{- end -}}
{{- join "," $urls -}}
{{- else -}}
{{ $scheme }}://{{ $service }}:{{ $port }}
{{- end -}}
{{- end -}}

{{/* The port of /metrics, /livez and /readyz. */}}
{{- define "tandem.metricsPort" -}}9100{{- end -}}

{{/* "true" for a service that is to run: (dict "root" $ "name" NAME). */}}
{{- define "tandem.runs" -}}
{{- $service := index .root.Values.services .name -}}
{{- if hasKey $service "enabled" -}}{{ if $service.enabled }}true{{ end }}{{- else -}}true{{- end -}}
{{- end -}}

{{/* "true" where a service has a port for other nodes, and with it the node key. */}}
{{- define "tandem.meetsPeers" -}}
{{- $found := "" -}}
{{- range $name, $role := include "tandem.roles" . | fromYaml -}}
{{- if and $role.peers (include "tandem.runs" (dict "root" $ "name" $name)) }}{{- $found = "true" }}{{- end -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{/* The port for other nodes, one number for UDP and TCP: a node port is announced as it is, so it is the
containers' too. */}}
{{- define "tandem.peersPort" -}}
{{- $expose := .Values.services.discovery.expose -}}
{{- if eq $expose.type "NodePort" -}}{{ $expose.nodePort }}{{- else -}}{{ $expose.port }}{{- end -}}
{{- end -}}
