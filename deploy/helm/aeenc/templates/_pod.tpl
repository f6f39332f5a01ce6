{{/*
What the pods of all components share. Each template makes a dictionary and hands it on:

  root       the chart's context
  component  encoder, index, …: image, port, labels
  name       of the workload, after the release's; the component, or component and pool
  kind       Deployment or StatefulSet
  values     replicas, resources, gpus, nodeSelector, tolerations, affinity, podAnnotations, extra…
  probe      grpc, tcp, or a path of HTTP
  command, env, mounts, volumes, claims: lists in YAML; env, mounts, volumes and claims may be empty
*/}}

{{/* Environment of the four services: (dict root component settings secretSettings), as "aeenc.settings" takes them. */}}
{{- define "aeenc.serviceEnv" -}}
{{- $v := .root.Values -}}
{{- $prefix := printf "AEENC_%s_" (upper .component) -}}
{{- $auth := $v.auth.secretName -}}
- {name: {{ $prefix }}HOST, value: 0.0.0.0}
- {name: {{ $prefix }}PORT, value: {{ include "aeenc.port" .component | quote }}}
- {name: {{ $prefix }}METRICS_PORT, value: {{ include "aeenc.metricsPort" .component | quote }}}
- {name: {{ $prefix }}DRAIN_S, value: {{ $v.drainSeconds | quote }}}
{{ include "aeenc.secretEnv" (list (printf "%sTOKEN" $prefix) (dict "name" $auth "key" "token")) }}
{{ include "aeenc.secretEnv" (list (printf "%sADMIN_TOKEN" $prefix) (dict "name" $auth "key" "admin-token")) }}
{{- if $v.auth.tokensFile }}
- {name: {{ $prefix }}TOKENS_FILE, value: /etc/aeenc/credentials/tokens.toml}
{{- end }}
{{- if $v.tls.secretName }}
- {name: {{ $prefix }}TLS_CERT, value: /etc/aeenc/tls/tls.crt}
- {name: {{ $prefix }}TLS_KEY, value: /etc/aeenc/tls/tls.key}
{{- if $v.tls.clientCertificates }}
- {name: {{ $prefix }}TLS_CLIENT_CA, value: /etc/aeenc/tls/ca.crt}
{{- end }}
{{- end }}
{{- if ne .component "encoder" }}
{{ include "aeenc.secretEnv" (list (printf "%sPEER_TOKEN" $prefix) (dict "name" $auth "key" "token")) }}
{{- if ne .component "index" }}
{{ include "aeenc.secretEnv" (list (printf "%sPEER_ADMIN_TOKEN" $prefix) (dict "name" $auth "key" "admin-token")) }}
{{- end }}
{{- if $v.tls.secretName }}
- {name: {{ $prefix }}PEER_CA, value: /etc/aeenc/tls/ca.crt}
- {name: {{ $prefix }}PEER_CERT, value: /etc/aeenc/tls/tls.crt}
- {name: {{ $prefix }}PEER_KEY, value: /etc/aeenc/tls/tls.key}
{{- end }}
{{- end }}
{{- if ne .component "sampler" }}
- {name: {{ $prefix }}ARTIFACTS_DIR, value: /var/lib/aeenc/artifacts}
{{- if $v.artifacts.url }}
- {name: {{ $prefix }}ARTIFACTS_URL, value: {{ $v.artifacts.url | quote }}}
- {name: {{ $prefix }}ARTIFACTS_CACHE_BYTES, value: {{ include "aeenc.text" $v.artifacts.cacheBytes | quote }}}
{{- end }}
{{- end }}
{{- if ne .component "index" }}
{{ include "aeenc.redisEnv" (list .root $prefix) }}
{{- end }}
{{- include "aeenc.settings" (list $prefix (prepend .settings $v.settings) .secretSettings) }}
{{- end -}}

{{/* Environment of gateway and workbench: (dict root component services settings). An Ingress of yours ends TLS. */}}
{{- define "aeenc.webEnv" -}}
{{- $root := .root -}}
{{- $prefix := printf "AEENC_%s_" (upper .component) -}}
{{- $hasTls := ne $root.Values.tls.secretName "" -}}
- {name: {{ $prefix }}HOST, value: 0.0.0.0}
- {name: {{ $prefix }}PORT, value: {{ include "aeenc.port" .component | quote }}}
- {name: {{ $prefix }}ALLOW_INSECURE, value: "true"}
{{- range .services }}
- {name: {{ $prefix }}{{ upper . }}, value: {{ include "aeenc.target" (list $root .) | quote }}}
{{- end }}
{{- if $hasTls }}
- {name: {{ $prefix }}CA, value: /etc/aeenc/tls/ca.crt}
- {name: {{ $prefix }}CERT, value: /etc/aeenc/tls/tls.crt}
- {name: {{ $prefix }}KEY, value: /etc/aeenc/tls/tls.key}
{{- end }}
{{- $plain := ternary (dict) (dict "PLAIN_TOKEN" true) $hasTls }}
{{- include "aeenc.settings" (list $prefix (prepend .settings $plain) (dict)) }}
{{- end -}}

{{/* (list root prefix) */}}
{{- define "aeenc.redisEnv" -}}
{{- $root := index . 0 -}}
{{- $prefix := index . 1 -}}
{{- $redis := $root.Values.redis -}}
- {name: {{ $prefix }}NAMESPACE, value: {{ $redis.namespace | quote }}}
{{- if $redis.bundled.enabled }}
- {name: {{ $prefix }}REDIS_URL, value: "redis://{{ include "aeenc.fullname" $root }}-redis:6379/0"}
{{ include "aeenc.secretEnv" (list (printf "%sREDIS_PASSWORD" $prefix) (dict "name" $root.Values.auth.secretName "key" "redis-password")) }}
{{- else }}
{{- $_ := required "redis.external.urlSecret.name: name the Secret with the URL of your Redis, or enable redis.bundled" $redis.external.urlSecret.name }}
{{ include "aeenc.secretEnv" (list (printf "%sREDIS_URL" $prefix) $redis.external.urlSecret) }}
{{- with $redis.external.passwordSecret }}{{ if .name }}
{{ include "aeenc.secretEnv" (list (printf "%sREDIS_PASSWORD" $prefix) .) }}
{{- end }}{{ end }}
{{- with $redis.external.sentinelPasswordSecret }}{{ if .name }}
{{ include "aeenc.secretEnv" (list (printf "%sREDIS_SENTINEL_PASSWORD" $prefix) .) }}
{{- end }}{{ end }}
{{- if $redis.external.tlsSecret }}
- {name: {{ $prefix }}REDIS_CA, value: /etc/aeenc/redis/ca.crt}
{{- if $redis.external.clientCertificate }}
- {name: {{ $prefix }}REDIS_CERT, value: /etc/aeenc/redis/tls.crt}
- {name: {{ $prefix }}REDIS_KEY, value: /etc/aeenc/redis/tls.key}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "aeenc.metricsPort" -}}
{{- get (dict "encoder" "9051" "index" "9052" "sampler" "9053" "trainer" "9054") . -}}
{{- end -}}

{{/* The check of a probe. kubelet's own gRPC probe speaks no TLS. */}}
{{- define "aeenc.check" -}}
{{- if eq .probe "tcp" -}}
tcpSocket: {port: grpc}
{{- else if hasPrefix "/" .probe -}}
httpGet: {path: {{ .probe }}, port: http}
{{- else if .root.Values.tls.secretName -}}
exec:
  command: [python, -m, services.kit.healthcheck, --ca, /etc/aeenc/tls/ca.crt, --cert, /etc/aeenc/tls/tls.crt, --key, /etc/aeenc/tls/tls.key, "localhost:{{ include "aeenc.port" .component }}"]
timeoutSeconds: 6
{{- else -}}
grpc: {port: {{ include "aeenc.port" .component }}}
timeoutSeconds: 5
{{- end -}}
{{- end -}}

{{/* Whether the process lives. The gateway's /health asks an encoder, whose absence is no reason to restart it. */}}
{{- define "aeenc.alive" -}}
{{- if hasPrefix "/" .probe -}}
tcpSocket: {port: http}
{{- else -}}
{{ include "aeenc.check" . }}
{{- end -}}
{{- end -}}

{{- define "aeenc.workload" -}}
{{- $root := .root -}}
{{- $v := $root.Values -}}
{{- $own := .values -}}
{{- $gpus := int (default 0 $own.gpus) -}}
{{- $four := has .component (list "encoder" "index" "sampler" "trainer") -}}
{{- $names := list -}}
{{- range concat (fromYamlArray .env) (default list $own.extraEnv) -}}
{{- if has .name $names -}}
{{- fail (printf "%s stands twice in %s: the chart sets it itself, or two of settings, secretSettings and extraEnv do; keep one" .name $.component) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- $artifacts := and (has .component (list "encoder" "index" "trainer")) (not $v.artifacts.url) -}}
{{- $web := hasPrefix "/" .probe -}}
{{- $variant := default (ternary "gpu" "" (gt $gpus 0)) $own.variant -}}
apiVersion: apps/v1
kind: {{ .kind }}
metadata:
  name: {{ include "aeenc.fullname" $root }}-{{ .name }}
  labels: {{- include "aeenc.labels" (list $root .component) | nindent 4 }}
spec:
  {{- if not (dig "autoscaling" "enabled" false $own) }}
  replicas: {{ ternary 1 $own.replicas (kindIs "invalid" $own.replicas) }}
  {{- end }}
  {{- if eq .kind "StatefulSet" }}
  serviceName: {{ include "aeenc.fullname" $root }}-{{ .component }}
  podManagementPolicy: Parallel
  {{- else if gt $gpus 0 }}
  strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 0, maxUnavailable: 1}} # no GPU waits for a second pod
  {{- else }}
  strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  {{- end }}
  selector:
    matchLabels: &selector
      {{- include "aeenc.componentLabels" (list $root .component) | nindent 6 }}
      aeenc-workload: {{ .name }}
  template:
    metadata:
      labels: {{- include "aeenc.labels" (list $root .component) | nindent 8 }}
        aeenc-workload: {{ .name }}
      {{- with $own.podAnnotations }}
      annotations: {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      serviceAccountName: {{ include "aeenc.serviceAccount" $root }}
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ add $v.preStopSeconds $v.drainSeconds 15 }}
      {{- with $v.image.pullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 10001
        runAsGroup: 10001
        fsGroup: 10001
        fsGroupChangePolicy: OnRootMismatch
        seccompProfile: {type: RuntimeDefault}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels: *selector
      {{- range $field := list "nodeSelector" "tolerations" "affinity" }}
      {{- with get $own $field }}
      {{ $field }}: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- end }}
      {{- with $own.runtimeClassName }}
      runtimeClassName: {{ . }}
      {{- end }}
      containers:
        - name: {{ .component }}
          image: {{ with $v.image.registry }}{{ . }}/{{ end }}aeenc-{{ .component }}:{{ default $root.Chart.AppVersion $v.image.tag }}{{ with $variant }}-{{ . }}{{ end }}
          imagePullPolicy: {{ $v.image.pullPolicy }}
          command: {{- .command | nindent 12 }}
          env: {{- .env | nindent 12 }}
            {{- with $own.extraEnv }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          {{- if and $v.artifacts.credentialsSecret $four (ne .component "sampler") }}
          envFrom:
            - secretRef: {name: {{ $v.artifacts.credentialsSecret | quote }}}
          {{- end }}
          ports:
            - {name: {{ ternary "http" "grpc" $web }}, containerPort: {{ include "aeenc.port" .component }}}
            {{- if $four }}
            - {name: metrics, containerPort: {{ include "aeenc.metricsPort" .component }}}
            {{- end }}
          startupProbe: # the first start exports the base model; an encoder waits for that
            {{- include "aeenc.alive" . | nindent 12 }}
            periodSeconds: 5
            failureThreshold: 180
          readinessProbe:
            {{- include "aeenc.check" . | nindent 12 }}
            periodSeconds: 10
            failureThreshold: 2
          livenessProbe: # five minutes: a lost GPU comes back with the process alone
            {{- include "aeenc.alive" . | nindent 12 }}
            periodSeconds: 20
            failureThreshold: 15
          lifecycle:
            preStop: {sleep: {seconds: {{ $v.preStopSeconds }}}}
          resources: {{- toYaml (ternary (mergeOverwrite (deepCopy (default (dict) $own.resources)) (dict "limits" (dict "nvidia.com/gpu" $gpus))) $own.resources (gt $gpus 0)) | nindent 12 }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
          volumeMounts:
            - {name: tmp, mountPath: /tmp}
            {{- if $artifacts }}
            - {name: artifacts, mountPath: /var/lib/aeenc/artifacts{{ if eq .component "encoder" }}, readOnly: true{{ end }}}
            {{- end }}
            {{- if and $v.auth.tokensFile $four }}
            - {name: credentials, mountPath: /etc/aeenc/credentials, readOnly: true}
            {{- end }}
            {{- if $v.tls.secretName }}
            - {name: tls, mountPath: /etc/aeenc/tls, readOnly: true}
            {{- end }}
            {{- if and $v.redis.external.tlsSecret (has .component (list "encoder" "sampler" "trainer")) }}
            - {name: redis-tls, mountPath: /etc/aeenc/redis, readOnly: true}
            {{- end }}
            {{- with .mounts }}
            {{- . | nindent 12 }}
            {{- end }}
            {{- with $own.extraVolumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      volumes:
        - {name: tmp, emptyDir: {sizeLimit: {{ $v.scratchSize }}}}
        {{- if $artifacts }}
        - name: artifacts
          persistentVolumeClaim: {claimName: {{ default (printf "%s-artifacts" (include "aeenc.fullname" $root)) $v.artifacts.volume.existingClaim }}}
        {{- end }}
        {{- if and $v.auth.tokensFile $four }}
        - name: credentials
          secret: {secretName: {{ $v.auth.secretName | quote }}, items: [{key: tokens.toml, path: tokens.toml}]}
        {{- end }}
        {{- if $v.tls.secretName }}
        - {name: tls, secret: {secretName: {{ $v.tls.secretName | quote }}}}
        {{- end }}
        {{- if and $v.redis.external.tlsSecret (has .component (list "encoder" "sampler" "trainer")) }}
        - {name: redis-tls, secret: {secretName: {{ $v.redis.external.tlsSecret | quote }}}}
        {{- end }}
        {{- with .volumes }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- with $own.extraVolumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  {{- with .claims }}
  volumeClaimTemplates: {{- . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* A volume of a pod's own: (dict name size class) */}}
{{- define "aeenc.claim" -}}
- metadata: {name: {{ .name }}}
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .class }}
    storageClassName: {{ . | quote }}
    {{- end }}
    resources: {requests: {storage: {{ .size }}}}
{{- end -}}

{{/* (list root component): every pod under one name. */}}
{{- define "aeenc.headlessService" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "aeenc.fullname" $root }}-{{ $component }}
  labels: {{- include "aeenc.labels" . | nindent 4 }}
spec:
  clusterIP: None
  selector: {{- include "aeenc.componentLabels" . | nindent 4 }}
  ports:
    - {name: grpc, port: {{ include "aeenc.port" $component }}, targetPort: grpc}
    {{- if include "aeenc.metricsPort" $component }}
    - {name: metrics, port: {{ include "aeenc.metricsPort" $component }}, targetPort: metrics}
    {{- end }}
{{- end -}}
